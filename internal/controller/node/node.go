package node

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"rik.dev/rik/api/rik/nodestate"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/instance"
)

// Finalizer keeps a deleted Node until its instances have been freed. A Node that is deleted
// and created again at once must not keep them.
const Finalizer = "rik.dev/instances"

// ConditionReplacementPaused is True on a lost node whose instances are not replaced because
// too many nodes were lost at once.
const ConditionReplacementPaused = "ReplacementPaused"

// ConditionNetworkUnavailable is True on a node without an address range. Its instances get no
// address.
const ConditionNetworkUnavailable = "NetworkUnavailable"

// Report is what the scheduler reported about a node in this session.
type Report struct {
	Connected    bool
	DiskPressure bool
	// NoNetwork means that the node's instances have only their loopback.
	NoNetwork bool
	// Troubles maps the kinds of trouble that keep the node from serving instances properly to
	// messages.
	Troubles map[nodestate.TroubleKind]string
	// Status has no conditions. It is nil until the node has sent it.
	Status *rikv1alpha1.NodeStatus
	// Labels and Taints are those that the node requests. They are applied once, when its object
	// is created.
	Labels map[string]string
	Taints []rikv1alpha1.Taint
	// Hold is the confirmation that the node waits for, or nil.
	Hold *rikv1alpha1.NodeConfirmation
}

// allowedLabels are the labels of reserved domains that a node may request.
var allowedLabels = []string{rikv1alpha1.LabelZone, rikv1alpha1.LabelRegion}

// AskedLabels splits the labels that a node requests into those that it may set and those that
// are refused: malformed or reserved labels. A node that could set any label could attract the
// workloads of others.
func AskedLabels(asked map[string]string) (kept map[string]string, refused []string) {
	kept = map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(asked)) {
		value := asked[key]
		if len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0 || reserved(key) {
			refused = append(refused, key)
			continue
		}
		kept[key] = value
	}
	return kept, refused
}

func reserved(key string) bool {
	if slices.Contains(allowedLabels, key) {
		return false
	}
	domain, _, prefixed := strings.Cut(key, "/")
	if !prefixed {
		return false
	}
	for _, d := range []string{"rik.dev", "kubernetes.io", "k8s.io"} {
		if domain == d || strings.HasSuffix(domain, "."+d) {
			return true
		}
	}
	return false
}

// ParseTaints parses the taints that a node requests. It drops malformed taints and those
// reserved for rik.
func ParseTaints(text []byte) ([]rikv1alpha1.Taint, error) {
	if len(text) == 0 {
		return nil, nil
	}
	var all []rikv1alpha1.Taint
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("reading the taints that the node requests: %w", err)
	}
	effects := []rikv1alpha1.TaintEffect{
		rikv1alpha1.TaintNoSchedule, rikv1alpha1.TaintPreferNoSchedule, rikv1alpha1.TaintNoExecute,
	}
	return slices.DeleteFunc(all, func(t rikv1alpha1.Taint) bool {
		return len(validation.IsQualifiedName(t.Key)) > 0 || len(validation.IsValidLabelValue(t.Value)) > 0 ||
			reserved(t.Key) || !slices.Contains(effects, t.Effect)
	}), nil
}

// Fresh returns the object of a new node.
func Fresh(name string, r *Report) *rikv1alpha1.Node {
	return Shape(&rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, r)
}

// Shape returns a copy of the node with its desired metadata and spec. The node's requested
// labels and taints are applied once. The labels that describe the node and rik's own taints
// are always applied.
func Shape(n *rikv1alpha1.Node, r *Report) *rikv1alpha1.Node {
	out := n.DeepCopy()
	if r != nil && r.Status != nil && !slices.Contains(out.Finalizers, Finalizer) {
		// The finalizer also marks that the requests of the first join were applied.
		out.Finalizers = append(out.Finalizers, Finalizer)
		apply(out, r)
	}
	if r != nil && r.Status != nil {
		if out.Labels == nil {
			out.Labels = map[string]string{}
		}
		info := &r.Status.Info
		// Use the node's name and not the machine's host name: two nodes on one machine, or
		// clones of one machine, have the same host name.
		for key, value := range map[string]string{
			rikv1alpha1.LabelHostname: n.Name, rikv1alpha1.LabelArch: info.Architecture, rikv1alpha1.LabelOS: info.OperatingSystem,
		} {
			if value != "" && len(validation.IsValidLabelValue(value)) == 0 {
				out.Labels[key] = value
			}
		}
	}
	if r != nil {
		out.Spec.Taints = taint(out.Spec.Taints, rikv1alpha1.TaintUnreachable, !r.Connected)
	}
	out.Spec.Taints = taint(out.Spec.Taints, rikv1alpha1.TaintUnschedulable, out.Spec.Unschedulable)
	return out
}

// apply applies the labels and taints that a node requests, unless the object already sets
// them.
func apply(n *rikv1alpha1.Node, r *Report) {
	labels, _ := AskedLabels(r.Labels)
	if n.Labels != nil {
		maps.Copy(labels, n.Labels)
	}
	n.Labels = labels
	for _, t := range r.Taints {
		same := func(o rikv1alpha1.Taint) bool { return o.Key == t.Key && o.Effect == t.Effect }
		if !slices.ContainsFunc(n.Spec.Taints, same) {
			n.Spec.Taints = append(n.Spec.Taints, t)
		}
	}
}

// taint adds or removes one of rik's own taints.
func taint(taints []rikv1alpha1.Taint, key string, want bool) []rikv1alpha1.Taint {
	own := rikv1alpha1.Taint{Key: key, Effect: rikv1alpha1.TaintNoSchedule}
	if want {
		if slices.Contains(taints, own) {
			return taints
		}
		return append(taints, own)
	}
	return slices.DeleteFunc(taints, func(t rikv1alpha1.Taint) bool { return t == own })
}

// reasonSilent is the reason of the condition Ready of a node that the scheduler reports as
// lost. The condition's transition time is the start of the time that counts toward
// replacement.
const reasonSilent = "NodeSilent"

// reasonRefused is the reason of the condition Ready of a node that reaches the scheduler, and whose
// connection the controller refuses.
const reasonRefused = "RefusedByController"

// Status returns the desired status of the node. Without a report in this session the state is
// not known, and the earlier status stays. unheard is the time since when there has been no
// scheduler, or zero if there is one. A node that was Ready is then Unknown.
func Status(n *rikv1alpha1.Node, r *Report, paused bool, unheard time.Time, now metav1.Time) rikv1alpha1.NodeStatus {
	out := *n.Status.DeepCopy()
	ready := meta.FindStatusCondition(out.Conditions, rikv1alpha1.NodeReady)
	switch {
	case !unheard.IsZero() && ready != nil && ready.Status == metav1.ConditionTrue:
		set(&out, now, rikv1alpha1.NodeReady, metav1.ConditionUnknown, instance.ReasonSchedulerUnavailable,
			"no scheduler has been connected since "+unheard.UTC().Format(time.RFC3339)+", so the node cannot report; its status is from that time")
		return out
	case !unheard.IsZero() && ready != nil:
		return out
	case r == nil:
		if ready == nil {
			set(&out, now, rikv1alpha1.NodeReady, metav1.ConditionUnknown, "NeverHeard", "the node has not reported yet")
		}
		return out
	}
	if r.Status != nil {
		conditions := out.Conditions
		out = *r.Status.DeepCopy()
		out.Conditions = conditions
	}
	switch {
	case !r.Connected:
		if ready != nil && (ready.Reason != reasonSilent || ready.LastTransitionTime.After(now.Time)) {
			// The time counts from now on, even if the condition was Unknown before for another
			// reason, or if the clock was ahead when it was written.
			meta.RemoveStatusCondition(&out.Conditions, rikv1alpha1.NodeReady)
		}
		set(&out, now, rikv1alpha1.NodeReady, metav1.ConditionUnknown, reasonSilent, "the node has not reported for longer than --node-timeout")
	case r.Hold != nil:
		set(&out, now, rikv1alpha1.NodeReady, metav1.ConditionFalse, rikv1alpha1.NodeConfirmationNeeded, Explain(n.Name, r.Hold))
	case r.Troubles[nodestate.TroubleController] != "":
		set(&out, now, rikv1alpha1.NodeReady, metav1.ConditionFalse, reasonRefused, "the controller refuses the connection of the node, which therefore gets no Secrets and no network changes: "+r.Troubles[nodestate.TroubleController])
	case len(out.Info.Kinds) == 0:
		set(&out, now, rikv1alpha1.NodeReady, metav1.ConditionFalse, "NoRuntime", "the node cannot run any kind of workload")
	default:
		set(&out, now, rikv1alpha1.NodeReady, metav1.ConditionTrue, "Connected", "the node reports")
	}
	if r.Connected {
		pressure, message := metav1.ConditionFalse, "the node's disk has enough free space"
		if r.DiskPressure {
			pressure, message = metav1.ConditionTrue, "the node's disk is nearly full"
		}
		set(&out, now, rikv1alpha1.NodeDiskPressure, pressure, "Reported", message)
		troubled(&out, r.Troubles, now)
	}
	confirmable(&out, n.Name, r, now)
	if paused && !r.Connected {
		set(&out, now, ConditionReplacementPaused, metav1.ConditionTrue, "TooManySilent",
			"too many nodes stopped reporting at the same time; their instances are not replaced until some of these nodes return or are deleted")
	} else {
		meta.RemoveStatusCondition(&out.Conditions, ConditionReplacementPaused)
	}
	return out
}

// networked sets the condition for a node without an address range, or removes it.
func networked(s *rikv1alpha1.NodeStatus, problem string, now metav1.Time) {
	if problem == "" {
		if c := meta.FindStatusCondition(s.Conditions, ConditionNetworkUnavailable); c != nil && c.Reason == reasonNotSetUp {
			return
		}
		meta.RemoveStatusCondition(&s.Conditions, ConditionNetworkUnavailable)
		return
	}
	set(s, now, ConditionNetworkUnavailable, metav1.ConditionTrue, "NoPodCIDR", problem)
}

func set(s *rikv1alpha1.NodeStatus, now metav1.Time, kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: now,
	})
}

// sameSpec reports whether two versions of a node do not differ in fields that Shape sets.
func sameSpec(a, b *rikv1alpha1.Node) bool {
	return equality.Semantic.DeepEqual(a.Labels, b.Labels) && equality.Semantic.DeepEqual(a.Spec, b.Spec) &&
		slices.Equal(a.Finalizers, b.Finalizers)
}

// Paused reports whether so many nodes are lost at once that the fault is more likely in the
// network than in the nodes. That is the case if all nodes are lost, or at least two and more than
// a third.
func Paused(silent, all int) bool {
	return silent > 0 && (silent == all || silent >= 2 && 3*silent > all)
}
