package validation

import (
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"rik.dev/rik/internal/apiserver/apis/rik"
)

// placement validates the fields that determine on which nodes an instance may run.
func placement(at *field.Path, t *rik.InstanceTemplate) field.ErrorList {
	errs := metav1validation.ValidateLabels(t.NodeSelector, at.Child("nodeSelector"))
	if t.Affinity != nil {
		errs = append(errs, affinity(at.Child("affinity"), t.Affinity)...)
	}
	errs = append(errs, atMost(at.Child("tolerations"), len(t.Tolerations), MaxTolerations)...)
	for i := range t.Tolerations {
		errs = append(errs, toleration(at.Child("tolerations").Index(i), &t.Tolerations[i])...)
	}
	errs = append(errs, atMost(at.Child("topologySpread"), len(t.TopologySpread), MaxTerms)...)
	keys := seen{}
	for i, s := range t.TopologySpread {
		here := at.Child("topologySpread").Index(i)
		errs = append(errs, within(here.Child("maxSkew"), s.MaxSkew, 1, MaxSkew)...)
		errs = append(errs, qualified(here.Child("topologyKey"), s.TopologyKey)...)
		errs = append(errs, among(here.Child("whenUnsatisfiable"), s.WhenUnsatisfiable, rik.DoNotSchedule, rik.ScheduleAnyway)...)
		errs = append(errs, keys.add(here, s.TopologyKey+" "+string(s.WhenUnsatisfiable))...)
	}
	return errs
}

func affinity(at *field.Path, a *rik.Affinity) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, atMost(at.Child("nodeRequired"), len(a.NodeRequired), MaxTerms)...)
	for i := range a.NodeRequired {
		errs = append(errs, nodeTerm(at.Child("nodeRequired").Index(i), &a.NodeRequired[i])...)
	}
	errs = append(errs, atMost(at.Child("nodePreferred"), len(a.NodePreferred), MaxTerms)...)
	for i := range a.NodePreferred {
		here := at.Child("nodePreferred").Index(i)
		errs = append(errs, within(here.Child("weight"), a.NodePreferred[i].Weight, 1, 100)...)
		errs = append(errs, nodeTerm(here.Child("term"), &a.NodePreferred[i].Term)...)
	}
	for name, terms := range map[string][]rik.InstanceTerm{"instanceRequired": a.InstanceRequired, "instanceForbidden": a.InstanceForbidden} {
		errs = append(errs, atMost(at.Child(name), len(terms), MaxTerms)...)
		for i := range terms {
			here := at.Child(name).Index(i)
			errs = append(errs, metav1validation.ValidateLabelSelector(&terms[i].Selector, metav1validation.LabelSelectorValidationOptions{}, here.Child("selector"))...)
			errs = append(errs, qualified(here.Child("topologyKey"), terms[i].TopologyKey)...)
		}
	}
	return errs
}

func nodeTerm(at *field.Path, t *rik.NodeTerm) field.ErrorList {
	at = at.Child("matchExpressions")
	errs := atMost(at, len(t.MatchExpressions), MaxTerms)
	if len(t.MatchExpressions) == 0 {
		errs = append(errs, field.Required(at, ""))
	}
	for i, e := range t.MatchExpressions {
		errs = append(errs, metav1validation.ValidateLabelSelectorRequirement(e, metav1validation.LabelSelectorValidationOptions{}, at.Index(i))...)
	}
	return errs
}

var effects = []rik.TaintEffect{rik.TaintNoSchedule, rik.TaintPreferNoSchedule, rik.TaintNoExecute}

func toleration(at *field.Path, t *rik.Toleration) field.ErrorList {
	var errs field.ErrorList
	if t.Operator != "" {
		errs = append(errs, among(at.Child("operator"), t.Operator, rik.TolerationEqual, rik.TolerationExists)...)
	}
	switch {
	case t.Key != "":
		errs = append(errs, qualified(at.Child("key"), t.Key)...)
	case t.Operator != rik.TolerationExists:
		errs = append(errs, field.Required(at.Child("key"), "is required, except with operator Exists"))
	}
	if t.Operator == rik.TolerationExists {
		errs = append(errs, unsupported(at.Child("value"), t.Value != "", "has no effect with operator Exists")...)
	}
	errs = append(errs, messages(at.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))...)
	if t.Effect != "" {
		errs = append(errs, among(at.Child("effect"), t.Effect, effects...)...)
	}
	return errs
}
