// Package validate checks the messages of a node before any code uses them. A node may be
// broken or compromised, and its messages reach the memory of the scheduler and the controller,
// and objects that others read.
//
// Text that is too long is cut. Invalid parts are dropped. An invalid registration is refused.
// A correct riklet sends no message that is changed here. The limits of text are those of
// Kubernetes for the kubelet, where Kubernetes has one.
package validate

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/excerpt"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

// Limits of the messages of one node.
const (
	// MaxText is the length of a reason, a message or a fact, in bytes.
	MaxText = 4 << 10
	// MaxWord is the length of an ID, a name or an address, in bytes.
	MaxWord = 253
	// MaxInstances is the number of instances on a node. The API accepts a capacity of one
	// million.
	MaxInstances = 1 << 20
	// MaxContainers is the number of containers of an instance. Init containers have the same
	// limit separately. The API accepts fewer in a template.
	MaxContainers = 128
	// MaxConditions is the number of conditions of an instance.
	MaxConditions = 32
	// MaxImages is the number of images that a node reports.
	MaxImages = 10_000
	// MaxPorts is the number of ports in use on a machine: each number once for each of three
	// protocols.
	MaxPorts = 3 * 65536
	// MaxLabels is the number of labels that a node requests.
	MaxLabels = 256
	// MaxHoldWord is the length of the ID and the cluster of a hold, in bytes. IDs and UIDs are
	// shorter.
	MaxHoldWord = 64
	// MaxUnknown is the number of names in a hold. MaxUnknownName is the length of each in bytes: a
	// namespace of 63, a slash and a name of 253.
	MaxUnknown     = 64
	MaxUnknownName = 317
	// MaxTaints is the size of the taints that a node requests, in bytes of JSON.
	MaxTaints = 64 << 10
)

// Register checks a node's registration and returns its status. The error says what the node
// must change.
func Register(r *schedulerv1.Register) (*rikv1alpha1.NodeStatus, error) {
	if r == nil {
		return nil, errors.New("the first message must be Register")
	}
	if problems := validation.IsDNS1123Subdomain(r.GetNodeName()); len(problems) > 0 {
		return nil, fmt.Errorf("node name %q: %s", Text(r.GetNodeName(), MaxWord), problems[0])
	}
	status := &rikv1alpha1.NodeStatus{}
	if err := status.Unmarshal(r.GetStatus()); err != nil {
		return nil, fmt.Errorf("decoding the status of node %q: %w", r.GetNodeName(), err)
	}
	if err := capacity(status); err != nil {
		return nil, fmt.Errorf("node %q: %w", r.GetNodeName(), err)
	}
	switch {
	case len(r.GetRunning()) > MaxInstances:
		return nil, fmt.Errorf("node %q reports %d instances, and the limit is %d", r.GetNodeName(), len(r.GetRunning()), MaxInstances)
	case len(r.GetLabels()) > MaxLabels:
		return nil, fmt.Errorf("node %q requests %d labels, and the limit is %d", r.GetNodeName(), len(r.GetLabels()), MaxLabels)
	case len(r.GetTaints()) > MaxTaints:
		return nil, fmt.Errorf("node %q requests taints of %d bytes, and the limit is %d", r.GetNodeName(), len(r.GetTaints()), MaxTaints)
	case r.GetHighestTerm() < 0:
		return nil, fmt.Errorf("node %q reports the impossible term %d", r.GetNodeName(), r.GetHighestTerm())
	}
	r.Running = slices.DeleteFunc(r.Running, func(uid string) bool { return !isUID(uid) })
	for key, value := range r.GetLabels() {
		if len(key) > 2*MaxWord || len(value) > MaxWord {
			delete(r.Labels, key) // no label is that long; the API would refuse the Node
		}
	}
	facts(status)
	r.MachineId, r.BootId, r.RunId = Text(r.GetMachineId(), MaxWord), Text(r.GetBootId(), MaxWord), Text(r.GetRunId(), MaxWord)
	r.Version = Text(r.GetVersion(), MaxWord)
	var err error
	if r.Status, err = status.Marshal(); err != nil {
		return nil, fmt.Errorf("encoding the status of node %q: %w", r.GetNodeName(), err)
	}
	return status, nil
}

// capacity refuses resources that the API refuses. Otherwise the scheduler would use values
// that are not in the Node.
func capacity(s *rikv1alpha1.NodeStatus) error {
	largest := rikv1alpha1.LargestResources()
	for what, list := range map[string]rikv1alpha1.ResourceList{"capacity": s.Capacity, "allocatable": s.Allocatable} {
		for name, amount := range list {
			most, known := largest[name]
			switch {
			case !known:
				return fmt.Errorf("%s has %q, which is not a resource of a node", what, Text(string(name), MaxWord))
			case amount.Sign() < 0:
				return fmt.Errorf("%s of %s is %s, which is negative", what, name, amount.String())
			case amount.Cmp(most) > 0:
				return fmt.Errorf("%s of %s is %s, and the limit is %s", what, name, amount.String(), most.String())
			}
		}
	}
	return nil
}

// facts cuts a node's facts to their limits. Fields that a node may not set are dropped.
func facts(s *rikv1alpha1.NodeStatus) {
	s.Conditions, s.Confirmation = nil, nil // set by the controller
	i := &s.Info
	for _, word := range []*string{
		&i.MachineID, &i.BootID, &i.AgentVersion, &i.RuntimeVersion, &i.Distribution, &i.DistributionVersion,
		&i.OperatingSystem, &i.Architecture, &i.KernelVersion, &i.Hostname, &i.InstallationID,
	} {
		*word = Text(*word, MaxWord)
	}
	for _, address := range []*string{&i.InternalAddress, &i.ExternalAddress} {
		if _, err := netip.ParseAddr(*address); err != nil {
			*address = ""
		}
	}
	kinds := []rikv1alpha1.WorkloadKind{rikv1alpha1.KindPod, rikv1alpha1.KindFunction, rikv1alpha1.KindApp}
	i.Kinds = slices.DeleteFunc(i.Kinds, func(k rikv1alpha1.WorkloadKind) bool { return !slices.Contains(kinds, k) })
	i.Runtimes = slices.DeleteFunc(i.Runtimes, func(name string) bool { return len(name) > MaxWord })
	i.Runtimes = i.Runtimes[:min(len(i.Runtimes), MaxContainers)]
	i.CPUs, i.MemoryBytes, i.DiskBytes = max(i.CPUs, 0), max(i.MemoryBytes, 0), max(i.DiskBytes, 0)
}

// Heartbeat drops the invalid and excess parts of a heartbeat.
func Heartbeat(h *schedulerv1.Heartbeat) {
	h.Images = h.GetImages()[:min(len(h.GetImages()), MaxImages)]
	h.Images = slices.DeleteFunc(h.Images, func(name string) bool { return len(name) > MaxText })
	h.UsedPorts = h.GetUsedPorts()[:min(len(h.GetUsedPorts()), MaxPorts)]
	h.UsedPorts = slices.DeleteFunc(h.UsedPorts, func(p *schedulerv1.UsedPort) bool {
		return p.GetPort() < 1 || p.GetPort() > 65535 || len(p.GetProtocol()) > len("SCTP")
	})
}

// Hold reports whether a node's hold is valid.
func Hold(h *schedulerv1.Hold) bool {
	reasons := []string{rikv1alpha1.ConfirmUnknownInstances, rikv1alpha1.ConfirmOtherCluster, rikv1alpha1.ConfirmLowerTerm}
	long := func(name string) bool { return len(name) > MaxUnknownName }
	return len(h.GetUnknown()) <= MaxUnknown && !slices.ContainsFunc(h.GetUnknown(), long) &&
		h.GetId() != "" && len(h.GetId()) <= MaxHoldWord && len(h.GetCluster()) <= MaxHoldWord &&
		h.GetTerm() >= 0 && h.GetInstances() >= 0 && slices.Contains(reasons, h.GetReason())
}

// Observation cuts an observation to its limits. ok is false if it lacks a valid UID, sequence
// number or phase. dropped describes what was dropped.
func Observation(o *schedulerv1.Observation) (ok bool, dropped string) {
	if !isUID(o.GetUid()) || o.GetSequence() < 0 || !slices.Contains(phases, rikv1alpha1.InstancePhase(o.GetPhase())) {
		return false, "it lacks the instance, the sequence number or the phase"
	}
	o.Reason, o.Message = Text(o.GetReason(), MaxText), Text(o.GetMessage(), MaxText)
	if len(o.GetStatus()) == 0 {
		return true, ""
	}
	status := &rikv1alpha1.InstanceStatus{}
	if err := status.Unmarshal(o.GetStatus()); err != nil {
		o.Status = nil
		return true, "its details cannot be read"
	}
	dropped = details(status)
	var err error
	if o.Status, err = status.Marshal(); err != nil {
		o.Status = nil
		return true, "its details cannot be encoded"
	}
	return true, dropped
}

var phases = []rikv1alpha1.InstancePhase{
	rikv1alpha1.InstanceCreating, rikv1alpha1.InstanceRunning, rikv1alpha1.InstanceCompleted, rikv1alpha1.InstanceFailed,
	rikv1alpha1.InstanceDestroying, rikv1alpha1.InstanceTerminated,
}

// details drops the parts of an instance's status that the API would refuse.
func details(s *rikv1alpha1.InstanceStatus) (dropped string) {
	s.Reason, s.Message = Text(s.Reason, MaxText), Text(s.Message, MaxText)
	for _, address := range []*string{&s.Address, &s.HostAddress} {
		if _, err := netip.ParseAddr(*address); *address != "" && err != nil {
			*address, dropped = "", "an invalid address"
		}
	}
	ports := len(s.HostPorts)
	s.HostPorts = slices.DeleteFunc(s.HostPorts, func(p int32) bool { return p < 1 || p > 65535 })
	s.HostPorts = s.HostPorts[:min(len(s.HostPorts), 65535)]
	if len(s.HostPorts) < ports {
		dropped = "invalid ports"
	}
	s.Conditions = s.Conditions[:min(len(s.Conditions), MaxConditions)]
	for _, list := range []*[]rikv1alpha1.ContainerStatus{&s.Containers, &s.InitContainers} {
		before := len(*list)
		*list = containers(*list)
		if len(*list) < before {
			dropped = "containers without a name or a valid state, or too many containers"
		}
	}
	return dropped
}

func containers(list []rikv1alpha1.ContainerStatus) []rikv1alpha1.ContainerStatus {
	states := []rikv1alpha1.ContainerState{"", rikv1alpha1.ContainerWaiting, rikv1alpha1.ContainerRunning, rikv1alpha1.ContainerExited}
	names := map[string]bool{}
	list = slices.DeleteFunc(list, func(c rikv1alpha1.ContainerStatus) bool {
		again := names[c.Name]
		names[c.Name] = true
		return again || len(validation.IsDNS1123Label(c.Name)) > 0 || !slices.Contains(states, c.State)
	})
	list = list[:min(len(list), MaxContainers)]
	for i := range list {
		c := &list[i]
		c.Reason, c.Message, c.ImageDigest = Text(c.Reason, MaxText), Text(c.Message, MaxText), Text(c.ImageDigest, MaxWord)
		c.RestartCount = max(c.RestartCount, 0)
		if end := c.LastState; end != nil {
			end.Reason, end.Message = Text(end.Reason, MaxText), Text(end.Message, MaxText)
		}
	}
	return list
}

// Text returns an excerpt of at most the given number of bytes, as valid UTF-8.
func Text(text string, most int) string {
	return strings.ToValidUTF8(excerpt.Of(text, most), "")
}

// isUID reports whether a text can be the UID of an object. API servers create UIDs of 36
// characters.
func isUID(text string) bool { return text != "" && len(text) <= MaxWord }
