package placement

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// ShapeConfig is the input of NewShape.
type ShapeConfig struct {
	Namespace string
	Workload  string
	// Labels are the labels of the instances, which affinity selectors match.
	Labels   map[string]string
	Template *rikv1alpha1.InstanceTemplate
}

// Shape holds all that placement needs from a template, computed once. Requests with the same
// Shape share their filter and score work, so callers should create one Shape for all instances
// of a revision. It is immutable and may be used with several snapshots.
type Shape struct {
	namespace, workload string
	labels              labels.Set

	// kind is the workload kind that a node must run. A Pod in a microVM needs the same as a
	// Function.
	kind     rikv1alpha1.WorkloadKind
	virtual  bool
	runtime  string
	requests Resources
	priority int32
	images   []string
	salt     uint64

	nodeSelector  map[string]string
	nodeRequired  []labels.Selector
	nodePreferred []preference
	preferredSum  int64
	tolerations   []rikv1alpha1.Toleration

	required  []*termSpec
	forbidden []*termSpec
	spread    []spreadSpec
	zone      *termSpec

	// clusterPorts are reserved on every node for the workload. nodePorts are reserved on the
	// instance's node for the instance.
	clusterPorts, nodePorts []Port
	hostPorts               []int32
	// networked means that the instances serve ports on their own addresses.
	networked bool
	// hostNetwork means that the instances are in their nodes' own network.
	hostNetwork bool
}

// Port is a port number of a protocol.
type Port struct {
	Protocol rikv1alpha1.Protocol
	Number   int32
}

// String formats a port as number/protocol.
func (p Port) String() string { return fmt.Sprintf("%d/%s", p.Number, p.Protocol) }

type preference struct {
	selector labels.Selector
	weight   int64
}

type spreadSpec struct {
	term    *termSpec
	maxSkew int32
	hard    bool
}

// NewShape computes the shape of a template. It returns an error if a selector cannot be
// parsed.
func NewShape(c ShapeConfig) (*Shape, error) {
	t := c.Template
	s := &Shape{
		namespace: c.Namespace, workload: c.Workload, labels: labels.Set(maps.Clone(c.Labels)),
		kind: t.Kind, runtime: t.Runtime, requests: requestsOf(t), priority: t.Priority,
		salt:         hashOf(c.Namespace + "/" + c.Workload),
		nodeSelector: t.NodeSelector, tolerations: t.Tolerations,
	}
	switch {
	case t.Virtual():
		s.kind, s.virtual = rikv1alpha1.KindFunction, true
	case s.kind == "":
		s.kind = rikv1alpha1.KindPod
	}
	for _, c := range t.Processes() {
		if c.Image != "" {
			s.images = append(s.images, c.Image)
		}
	}
	s.takePorts(t)
	s.takeSpread(t)
	if t.Affinity != nil {
		if err := s.takeAffinity(t.Affinity); err != nil {
			return nil, fmt.Errorf("reading affinity of workload %s/%s: %w", c.Namespace, c.Workload, err)
		}
	}
	return s, nil
}

// Priority returns the priority of the shape's instances.
func (s *Shape) Priority() int32 { return s.priority }

// Requests returns the resources that an instance of the shape reserves.
func (s *Shape) Requests() Resources { return s.requests }

func (s *Shape) takePorts(t *rikv1alpha1.InstanceTemplate) {
	ports := t.AllPorts()
	s.networked, s.hostNetwork = len(ports) > 0 && !t.HostNetwork, t.HostNetwork
	for _, p := range ports {
		protocol := p.Protocol
		if protocol == "" {
			protocol = rikv1alpha1.ProtocolTCP
		}
		// A port of type LoadBalancer is open on every node too.
		onNodes := p.Type == rikv1alpha1.PortNodePort || p.Type == rikv1alpha1.PortLoadBalancer
		if onNodes && p.Port > 0 {
			s.clusterPorts = append(s.clusterPorts, Port{protocol, p.Port})
			s.hostPorts = append(s.hostPorts, p.Port)
		}
		listening := p.TargetPort
		if listening == 0 {
			listening = p.Port
		}
		if t.HostNetwork && listening > 0 {
			s.nodePorts = append(s.nodePorts, Port{protocol, listening})
			s.hostPorts = append(s.hostPorts, listening)
		}
	}
	slices.Sort(s.hostPorts)
	s.hostPorts = slices.Compact(s.hostPorts)
}

// takeSpread reads the spread constraints. They count the whole workload, with older revisions,
// because those use domains too during a rollout.
func (s *Shape) takeSpread(t *rikv1alpha1.InstanceTemplate) {
	s.zone = s.workloadTerm(rikv1alpha1.LabelZone)
	for _, c := range t.TopologySpread {
		s.spread = append(s.spread, spreadSpec{
			term:    s.workloadTerm(c.TopologyKey),
			maxSkew: max(1, c.MaxSkew),
			hard:    c.WhenUnsatisfiable != rikv1alpha1.ScheduleAnyway,
		})
	}
}

func (s *Shape) takeAffinity(a *rikv1alpha1.Affinity) error {
	for i := range a.NodeRequired {
		selector, err := nodeSelector(&a.NodeRequired[i])
		if err != nil {
			return fmt.Errorf("nodeRequired[%d]: %w", i, err)
		}
		s.nodeRequired = append(s.nodeRequired, selector)
	}
	for i := range a.NodePreferred {
		selector, err := nodeSelector(&a.NodePreferred[i].Term)
		if err != nil {
			return fmt.Errorf("nodePreferred[%d]: %w", i, err)
		}
		weight := int64(max(1, a.NodePreferred[i].Weight))
		s.nodePreferred = append(s.nodePreferred, preference{selector, weight})
		s.preferredSum += weight
	}
	var err error
	if s.required, err = s.instanceTerms(a.InstanceRequired); err != nil {
		return fmt.Errorf("instanceRequired%w", err)
	}
	if s.forbidden, err = s.instanceTerms(a.InstanceForbidden); err != nil {
		return fmt.Errorf("instanceForbidden%w", err)
	}
	return nil
}

func (s *Shape) instanceTerms(terms []rikv1alpha1.InstanceTerm) ([]*termSpec, error) {
	var out []*termSpec
	for i := range terms {
		selector, err := metav1.LabelSelectorAsSelector(&terms[i].Selector)
		if err != nil {
			return nil, fmt.Errorf("[%d].selector: %w", i, err)
		}
		out = append(out, newTermSpec(s.namespace, selector, terms[i].TopologyKey))
	}
	return out, nil
}

func nodeSelector(term *rikv1alpha1.NodeTerm) (labels.Selector, error) {
	return metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchExpressions: term.MatchExpressions})
}

// DependsOnOthers reports whether placing another instance can make room for one of this shape:
// by required affinity, or by raising the smallest count of a spread.
func (s *Shape) DependsOnOthers() bool { return len(s.required) > 0 || len(s.spread) > 0 }
