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

// Finalizer holds a Node until the instances that ran there have been freed: a
// Node deleted and made again at once must not keep them.
const Finalizer = "rik.dev/instances"

// ConditionReplacementPaused is True on a silent node whose instances are not
// replaced because too many nodes fell silent at once.
const ConditionReplacementPaused = "ReplacementPaused"

// ConditionNetworkUnavailable is True on a node that has no range of addresses
// of its own: its instances get no address.
const ConditionNetworkUnavailable = "NetworkUnavailable"

// Report is what the scheduler told of a node in this session.
type Report struct {
	Connected    bool
	DiskPressure bool
	// NoNetwork: its instances have their loopback only.
	NoNetwork bool
	// Troubles are what keeps it from serving instances as it should, with messages.
	Troubles map[nodestate.TroubleKind]string
	// Status has no conditions; nil until the node told it.
	Status *rikv1alpha1.NodeStatus
	// Labels and Taints are what the node asks for; they count once, when its
	// object is made.
	Labels map[string]string
	Taints []rikv1alpha1.Taint
	// Hold is what the node waits for; nil when it waits for nothing.
	Hold *rikv1alpha1.NodeConfirmation
}

// allowedLabels are those of reserved domains that a node may ask for.
var allowedLabels = []string{rikv1alpha1.LabelZone, rikv1alpha1.LabelRegion}

// AskedLabels keeps of the labels that a node asks for those that are well
// formed and that a node may give itself: a node that could take any label
// could attract the workloads of others.
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

// ParseTaints reads the taints that a node asks for and drops what is malformed
// or rik's own.
func ParseTaints(text []byte) ([]rikv1alpha1.Taint, error) {
	if len(text) == 0 {
		return nil, nil
	}
	var all []rikv1alpha1.Taint
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("reading the taints that the node asks for: %w", err)
	}
	effects := []rikv1alpha1.TaintEffect{
		rikv1alpha1.TaintNoSchedule, rikv1alpha1.TaintPreferNoSchedule, rikv1alpha1.TaintNoExecute,
	}
	return slices.DeleteFunc(all, func(t rikv1alpha1.Taint) bool {
		return len(validation.IsQualifiedName(t.Key)) > 0 || len(validation.IsValidLabelValue(t.Value)) > 0 ||
			reserved(t.Key) || !slices.Contains(effects, t.Effect)
	}), nil
}

// Fresh makes the object of a node that was never seen before.
func Fresh(name string, r *Report) *rikv1alpha1.Node {
	return Shape(&rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, r)
}

// Shape is the node with the metadata and spec that it should have: once, what
// it asks for itself; always, the labels that tell what it is and rik's own
// taints. It copies.
func Shape(n *rikv1alpha1.Node, r *Report) *rikv1alpha1.Node {
	out := n.DeepCopy()
	if r != nil && r.Status != nil && !slices.Contains(out.Finalizers, Finalizer) {
		// The finalizer tells that the wishes of the first join were heard.
		out.Finalizers = append(out.Finalizers, Finalizer)
		apply(out, r)
	}
	if r != nil && r.Status != nil {
		if out.Labels == nil {
			out.Labels = map[string]string{}
		}
		info := &r.Status.Info
		// The node's name, not what its machine calls itself: two nodes on one
		// machine, or clones of one, have the same name of the latter kind.
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

// apply takes over what a node asks for that nobody has decided otherwise.
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

// reasonSilent is that of the condition Ready of a node which the scheduler says it
// does not hear of. The condition's time is when the silence began to count.
const reasonSilent = "NodeSilent"

// Status is the status that the node should have. Without a report in this
// session nothing is known, and what was written before stays. If there has been no
// scheduler since unheard, a zero time for "there is one", what was Ready is Unknown.
func Status(n *rikv1alpha1.Node, r *Report, paused bool, unheard time.Time, now metav1.Time) rikv1alpha1.NodeStatus {
	out := *n.Status.DeepCopy()
	ready := meta.FindStatusCondition(out.Conditions, rikv1alpha1.NodeReady)
	switch {
	case !unheard.IsZero() && ready != nil && ready.Status == metav1.ConditionTrue:
		set(&out, now, rikv1alpha1.NodeReady, metav1.ConditionUnknown, instance.ReasonSchedulerUnavailable,
			"nobody has heard of the node since the scheduler was lost, "+unheard.UTC().Format(time.RFC3339)+"; what is shown of it is of that time")
		return out
	case !unheard.IsZero() && ready != nil:
		return out
	case r == nil:
		if ready == nil {
			set(&out, now, rikv1alpha1.NodeReady, metav1.ConditionUnknown, "NeverHeard", "the node has not been heard of yet")
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
			// Its time counts from now on, though it may have been Unknown before, or the clock
			// was ahead when it was written.
			meta.RemoveStatusCondition(&out.Conditions, rikv1alpha1.NodeReady)
		}
		set(&out, now, rikv1alpha1.NodeReady, metav1.ConditionUnknown, reasonSilent, "the node is not heard of")
	case r.Hold != nil:
		set(&out, now, rikv1alpha1.NodeReady, metav1.ConditionFalse, rikv1alpha1.NodeConfirmationNeeded, Explain(n.Name, r.Hold))
	case len(out.Info.Kinds) == 0:
		set(&out, now, rikv1alpha1.NodeReady, metav1.ConditionFalse, "NoRuntime", "the node can run no kind of workload")
	default:
		set(&out, now, rikv1alpha1.NodeReady, metav1.ConditionTrue, "Connected", "the node is heard of")
	}
	if r.Connected {
		pressure, message := metav1.ConditionFalse, "the node's disk has room"
		if r.DiskPressure {
			pressure, message = metav1.ConditionTrue, "the node's disk is nearly full"
		}
		set(&out, now, rikv1alpha1.NodeDiskPressure, pressure, "Reported", message)
		troubled(&out, r.Troubles, now)
	}
	confirmable(&out, n.Name, r, now)
	if paused && !r.Connected {
		set(&out, now, ConditionReplacementPaused, metav1.ConditionTrue, "TooManySilent",
			"too many nodes fell silent at once: their instances are not replaced until some return or are deleted")
	} else {
		meta.RemoveStatusCondition(&out.Conditions, ConditionReplacementPaused)
	}
	return out
}

// networked says why the node has no range of addresses, if there is a reason.
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

// sameSpec says whether two versions of a node differ in nothing that Shape sets.
func sameSpec(a, b *rikv1alpha1.Node) bool {
	return equality.Semantic.DeepEqual(a.Labels, b.Labels) && equality.Semantic.DeepEqual(a.Spec, b.Spec) &&
		slices.Equal(a.Finalizers, b.Finalizers)
}

// Paused says whether so many nodes are silent at once that the fault is more
// likely between them and us than in them: more than a third and at least two,
// or all.
func Paused(silent, all int) bool {
	return silent > 0 && (silent == all || silent >= 2 && 3*silent > all)
}
