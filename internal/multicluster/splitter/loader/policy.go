package loader

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
)

// Applying returns the Placements that apply to a root. The first one counts. A Placement that
// names the root comes before one that selects it. Then the older one comes first, then the name
// decides.
func Applying(placements []*workloadv1alpha1.Placement, root *unstructured.Unstructured) []*workloadv1alpha1.Placement {
	var out []*workloadv1alpha1.Placement
	for _, p := range placements {
		if p.Namespace == root.GetNamespace() && applies(p, root) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *workloadv1alpha1.Placement) int {
		rank := func(p *workloadv1alpha1.Placement) int {
			if p.Spec.TargetRef != nil {
				return 0
			}
			return 1
		}
		return cmp.Or(rank(a)-rank(b), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	return out
}

func applies(p *workloadv1alpha1.Placement, root *unstructured.Unstructured) bool {
	if ref := p.Spec.TargetRef; ref != nil {
		kind := root.GroupVersionKind()
		return ref.Group == kind.Group && ref.Kind == kind.Kind && ref.Name == root.GetName()
	}
	if p.Spec.Selector == nil {
		return false
	}
	selector, err := metav1.LabelSelectorAsSelector(p.Spec.Selector)
	return err == nil && selector.Matches(labels.Set(root.GetLabels()))
}

// policyOf returns the policy of a root. Its annotations override the Placement. The policy is
// the zero value if there are problems. chosen is true if the user has chosen the division.
func policyOf(p *workloadv1alpha1.Placement, root *unstructured.Unstructured, t Type) (policy splitter.Policy, chosen bool, problems field.ErrorList) {
	var base workloadv1alpha1.PlacementPolicy
	if p != nil {
		base = p.Spec.PlacementPolicy
	}
	wished, problems := base.WithHints(root.GetAnnotations())
	if len(problems) > 0 {
		return splitter.Policy{}, false, problems
	}
	if wished.Divide == workloadv1alpha1.DivideReplicas && !t.Scalable {
		return splitter.Policy{}, false, field.ErrorList{field.Invalid(field.NewPath("spec", "divide"), wished.Divide,
			t.GroupResource().String()+" have no scale subresource: they are whole or everywhere")}
	}
	policy, err := splitter.NewPolicy(wished, t.Division())
	if err != nil {
		return splitter.Policy{}, false, field.ErrorList{field.InternalError(field.NewPath("spec"), err)}
	}
	return policy, wished.Divide != "", nil
}
