package plan

import (
	"fmt"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	"rik.dev/rik/internal/excerpt"
)

const (
	// maxObstacles is the limit of the API for obstacles in a status.
	maxObstacles = 64
	// maxMessage limits the message of a condition. It is far below the limit of the API, and
	// more than users read.
	maxMessage = 2048
	// namedObstacles is the number of obstacles in a message. The status contains all of them.
	namedObstacles = 3
)

// NegotiatedConditions are the types of conditions that negotiation owns on a
// NegotiatedAPIResource. ImportConditions are those on an import. A condition of these types that
// is not in a plan must be removed.
var (
	NegotiatedConditions = []string{apiresourcev1alpha1.ConditionSubmitted, apiresourcev1alpha1.ConditionPublished,
		apiresourcev1alpha1.ConditionEnforced, apiresourcev1alpha1.ConditionInUse}
	ImportConditions = []string{apiresourcev1alpha1.ConditionCompatible, apiresourcev1alpha1.ConditionAvailable}
)

func condition(kind string, ok bool, reason, message string) metav1.Condition {
	status := metav1.ConditionFalse
	if ok {
		status = metav1.ConditionTrue
	}
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: excerpt.Of(message, maxMessage)}
}

// negotiatedConditions returns the conditions of a version's NegotiatedAPIResource. It returns
// none for a version that is not published.
func (d *decider) negotiatedConditions(v *version) []metav1.Condition {
	if v.disposition == dispositionAgreed {
		return nil
	}
	out := []metav1.Condition{d.submitted(v), d.servedNow(v, apiresourcev1alpha1.ConditionPublished), enforcedCondition(v)}
	if v.inUse != nil {
		out = append(out, condition(apiresourcev1alpha1.ConditionInUse, true, apiresourcev1alpha1.ReasonInUse,
			fmt.Sprintf("%s. No cluster offers the type any more; it stays, because objects of it are stored", v.inUse.Reason)))
	}
	return out
}

func enforcedCondition(v *version) metav1.Condition {
	if v.disposition != dispositionEnforced {
		return condition(apiresourcev1alpha1.ConditionEnforced, false, apiresourcev1alpha1.ReasonNegotiated, "the imports decide on the schema")
	}
	message := "a CRD that was made by hand decides on the schema"
	if v.enforcedBy == apiresourcev1alpha1.EnforcedByServer {
		message = "the kcp serves the type itself"
	}
	return condition(apiresourcev1alpha1.ConditionEnforced, true, apiresourcev1alpha1.ReasonEnforced, message)
}

// submitted returns the condition that the CRD has the schema.
func (d *decider) submitted(v *version) metav1.Condition {
	const kind = apiresourcev1alpha1.ConditionSubmitted
	switch {
	case v.disposition == dispositionEnforced:
		return condition(kind, true, apiresourcev1alpha1.ReasonEnforced, "the schema is the one that is served")
	case v.problem != nil:
		return condition(kind, false, v.problem.reason, v.problem.message)
	case v.served == nil || !equal(v.served, v.spec):
		return condition(kind, false, apiresourcev1alpha1.ReasonNotEstablished, "the CRD is written next")
	}
	return condition(kind, true, apiresourcev1alpha1.ReasonPublished, "the CRD has the schema")
}

// servedNow returns a condition of the given type that the version can be used.
func (d *decider) servedNow(v *version, kind string) metav1.Condition {
	switch {
	case v.disposition == dispositionEnforced && v.enforcedBy == apiresourcev1alpha1.EnforcedByServer:
		return condition(kind, true, apiresourcev1alpha1.ReasonEnforced, "the kcp serves the type itself")
	case v.disposition != dispositionEnforced && v.served == nil && v.problem != nil:
		return condition(kind, false, v.problem.reason, v.problem.message)
	case v.disposition != dispositionEnforced && v.served == nil:
		return condition(kind, false, apiresourcev1alpha1.ReasonNotEstablished, "the CRD does not have the version yet")
	}
	if p := unestablished(d.CRD); p != nil {
		return condition(kind, false, p.reason, p.message)
	}
	return condition(kind, true, apiresourcev1alpha1.ReasonPublished, "the type is served")
}

// unestablished returns why a CRD cannot be used, or nil if it can.
func unestablished(crd *apiextensionsv1.CustomResourceDefinition) *problem {
	names := apihelpers.FindCRDCondition(crd, apiextensionsv1.NamesAccepted)
	structural := apihelpers.FindCRDCondition(crd, apiextensionsv1.NonStructuralSchema)
	switch {
	case names != nil && names.Status == apiextensionsv1.ConditionFalse:
		return &problem{apiresourcev1alpha1.ReasonNameConflict, fmt.Sprintf("CRD %s: %s", crd.Name, names.Message)}
	case structural != nil && structural.Status == apiextensionsv1.ConditionTrue:
		return &problem{apiresourcev1alpha1.ReasonInvalidSchema, fmt.Sprintf("the schema of CRD %s is not structural: %s", crd.Name, structural.Message)}
	case names == nil || !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established):
		return &problem{apiresourcev1alpha1.ReasonNotEstablished, fmt.Sprintf("CRD %s is not established yet", crd.Name)}
	}
	return nil
}

// importResults returns the results for the imports of a version.
func (d *decider) importResults(v *version) []ImportResult {
	var out []ImportResult
	for _, c := range v.all {
		status := apiresourcev1alpha1.APIResourceImportStatus{
			Conditions: []metav1.Condition{compatibleCondition(v, c)},
			Obstacles:  atMost(c.obstacles), Dropped: atMost(c.dropped),
		}
		if available := d.available(v); c.compatible && available != nil {
			status.Conditions = append(status.Conditions, *available)
		}
		out = append(out, ImportResult{Import: c.source, Status: status})
	}
	return out
}

func compatibleCondition(v *version, c *candidate) metav1.Condition {
	const kind = apiresourcev1alpha1.ConditionCompatible
	switch {
	case c.invalid != "":
		return condition(kind, false, apiresourcev1alpha1.ReasonInvalidSchema, c.invalid)
	case !c.compatible:
		return condition(kind, false, apiresourcev1alpha1.ReasonIncompatibleSchema, summary(c.obstacles))
	case v.disposition == dispositionEnforced:
		return condition(kind, true, apiresourcev1alpha1.ReasonEnforced, "the cluster takes every object that is valid here")
	}
	return condition(kind, true, apiresourcev1alpha1.ReasonNegotiated, "the cluster takes every object that is valid by the negotiated schema")
}

// available returns the condition on compatible imports that the type can be used. It is nil for
// a version that is not published.
func (d *decider) available(v *version) *metav1.Condition {
	const kind = apiresourcev1alpha1.ConditionAvailable
	var out metav1.Condition
	switch v.disposition {
	case dispositionPublished, dispositionEnforced:
		out = d.servedNow(v, kind)
	case dispositionRetiring:
		out = condition(kind, false, apiresourcev1alpha1.ReasonNotEstablished, "the type is being taken away")
		if v.inUse != nil {
			out = condition(kind, false, apiresourcev1alpha1.ReasonInUse, "the type is kept only for the objects that are stored")
		}
	default:
		return nil
	}
	return &out
}

// summary names the first obstacles.
func summary(obstacles []apiresourcev1alpha1.Obstacle) string {
	var out []string
	for i, o := range obstacles {
		if i == namedObstacles {
			out = append(out, fmt.Sprintf("and %d more", len(obstacles)-i))
			break
		}
		text := o.Path + ": " + o.Reason
		if len(o.Locations) > 0 {
			text += " (" + strings.Join(o.Locations, ", ") + ")"
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

func atMost(obstacles []apiresourcev1alpha1.Obstacle) []apiresourcev1alpha1.Obstacle {
	return obstacles[:min(len(obstacles), maxObstacles)]
}
