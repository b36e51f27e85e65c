package deployment

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

func affinity(a *corev1.Affinity) *rikv1alpha1.Affinity {
	if a == nil {
		return nil
	}
	var out rikv1alpha1.Affinity
	if n := a.NodeAffinity; n != nil {
		if required := n.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			for i := range required.NodeSelectorTerms {
				out.NodeRequired = append(out.NodeRequired, nodeTerm(&required.NodeSelectorTerms[i]))
			}
		}
		for i := range n.PreferredDuringSchedulingIgnoredDuringExecution {
			p := &n.PreferredDuringSchedulingIgnoredDuringExecution[i]
			out.NodePreferred = append(out.NodePreferred, rikv1alpha1.WeightedNodeTerm{Weight: p.Weight, Term: nodeTerm(&p.Preference)})
		}
	}
	if p := a.PodAffinity; p != nil {
		out.InstanceRequired = instanceTerms(p.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	if p := a.PodAntiAffinity; p != nil {
		out.InstanceForbidden = instanceTerms(p.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	if out.NodeRequired == nil && out.NodePreferred == nil && out.InstanceRequired == nil && out.InstanceForbidden == nil {
		return nil
	}
	return &out
}

func nodeTerm(t *corev1.NodeSelectorTerm) rikv1alpha1.NodeTerm {
	var out rikv1alpha1.NodeTerm
	for _, e := range t.MatchExpressions {
		out.MatchExpressions = append(out.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: e.Key, Operator: metav1.LabelSelectorOperator(e.Operator), Values: words(e.Values),
		})
	}
	return out
}

func instanceTerms(list []corev1.PodAffinityTerm) []rikv1alpha1.InstanceTerm {
	var out []rikv1alpha1.InstanceTerm
	for i := range list {
		term := rikv1alpha1.InstanceTerm{TopologyKey: list[i].TopologyKey}
		if s := list[i].LabelSelector; s != nil {
			term.Selector = *s.DeepCopy()
		}
		out = append(out, term)
	}
	return out
}

func tolerations(list []corev1.Toleration) []rikv1alpha1.Toleration {
	var out []rikv1alpha1.Toleration
	for _, t := range list {
		operator := rikv1alpha1.TolerationOperator(t.Operator)
		if operator == "" {
			operator = rikv1alpha1.TolerationEqual
		}
		out = append(out, rikv1alpha1.Toleration{Key: t.Key, Operator: operator, Value: t.Value, Effect: rikv1alpha1.TaintEffect(t.Effect)})
	}
	return out
}

func spread(list []corev1.TopologySpreadConstraint) []rikv1alpha1.TopologySpread {
	var out []rikv1alpha1.TopologySpread
	for _, s := range list {
		out = append(out, rikv1alpha1.TopologySpread{
			MaxSkew: s.MaxSkew, TopologyKey: s.TopologyKey, WhenUnsatisfiable: rikv1alpha1.SpreadAction(s.WhenUnsatisfiable),
		})
	}
	return out
}
