package plan

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	apiversion "k8s.io/apimachinery/pkg/version"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

// Decide says what to write. It is an error only if something that the server gave
// cannot be read, such as the schema of a CRD; bad imports are verdicts.
func Decide(state State) (*Plan, error) { return decide(&decider{State: state}) }

// Preview decides as if every version of the resource were to be published now. It
// is for showing, not for carrying out.
func Preview(state State) (*Plan, error) {
	have := map[string]bool{}
	for _, n := range state.Negotiated {
		have[n.Spec.GroupVersion.Version] = true
	}
	state.Negotiated = slices.Clone(state.Negotiated)
	for _, i := range state.Imports {
		if !have[i.Spec.GroupVersion.Version] {
			have[i.Spec.GroupVersion.Version] = true
			n := &apiresourcev1alpha1.NegotiatedAPIResource{}
			n.Name = apiresourcev1alpha1.NegotiatedName(i.Spec.GVR())
			n.Spec.CommonAPIResourceSpec = i.Spec.CommonAPIResourceSpec
			state.Negotiated = append(state.Negotiated, n)
		}
	}
	return decide(&decider{State: state, preview: true})
}

func decide(d *decider) (*Plan, error) {
	d.asked = sets.New[string]()
	if err := d.gather(); err != nil {
		return nil, err
	}
	for _, v := range d.versions {
		if err := d.settle(v); err != nil {
			return nil, fmt.Errorf("version %s: %w", v.name, err)
		}
	}
	if err := d.changeCRD(); err != nil {
		return nil, err
	}
	for _, v := range d.versions {
		d.plan.Versions = append(d.plan.Versions, Version{Name: v.name, Have: v.have, Want: d.wanted(v), Verdicts: d.verdicts(v)})
	}
	return &d.plan, nil
}

// decider carries one decision.
type decider struct {
	State
	// preview publishes what is not published.
	preview  bool
	plan     Plan
	versions []*version
	asked    sets.Set[string]
}

// disposition is what is to become of a version.
type disposition int

const (
	// dispositionNone: there is nothing to negotiate.
	dispositionNone disposition = iota
	// dispositionAgreed: negotiated, and not published.
	dispositionAgreed
	// dispositionPublished: to be served by a CRD of ours.
	dispositionPublished
	// dispositionEnforced: served by somebody else's decision.
	dispositionEnforced
	// dispositionRetiring: served by a CRD of ours, and to be taken away.
	dispositionRetiring
)

// version is one version of the resource in a decision.
type version struct {
	name string
	all  []*candidate
	have *apiresourcev1alpha1.NegotiatedAPIResource
	// served is how a CRD of ours serves the version; nil when none does.
	served *apiresourcev1alpha1.CommonAPIResourceSpec
	// enforced is how the version is served by somebody else's decision, and enforcedBy
	// whose it is.
	enforced   *apiresourcev1alpha1.CommonAPIResourceSpec
	enforcedBy string

	disposition disposition
	spec        *apiresourcev1alpha1.CommonAPIResourceSpec
	// members are the clusters that the spec is good for, for the record.
	members []string
	// inUse says which object keeps a retiring version.
	inUse *apiresourcev1alpha1.Obstacle
	// problem says why the CRD does not serve the spec.
	problem *problem
}

// problem is the reason and message of a condition.
type problem struct{ reason, message string }

// ours is the CRD if negotiation made it and it is there to stay.
func (d *decider) ours() *apiextensionsv1.CustomResourceDefinition {
	if d.CRD == nil || ending(d.CRD) || !negotiated(d.CRD) {
		return nil
	}
	return d.CRD
}

// byHand is the CRD if somebody else made it and it is there to stay.
func (d *decider) byHand() *apiextensionsv1.CustomResourceDefinition {
	if d.CRD == nil || ending(d.CRD) || negotiated(d.CRD) {
		return nil
	}
	return d.CRD
}

// gather sorts the state by versions.
func (d *decider) gather() error {
	byName := map[string]*version{}
	get := func(name string) *version {
		if byName[name] == nil {
			byName[name] = &version{name: name}
		}
		return byName[name]
	}
	imports := map[string][]*apiresourcev1alpha1.APIResourceImport{}
	for _, i := range d.Imports {
		if i.DeletionTimestamp == nil {
			imports[i.Spec.GroupVersion.Version] = append(imports[i.Spec.GroupVersion.Version], i)
		}
	}
	for name, of := range imports {
		get(name).all = candidates(of, d.Founded)
	}
	for _, n := range d.Negotiated {
		get(n.Spec.GroupVersion.Version).have = n
	}
	if crd := d.ours(); crd != nil {
		for i := range crd.Spec.Versions {
			if name := crd.Spec.Versions[i].Name; crd.Spec.Versions[i].Served {
				spec, err := SpecOf(crd, name)
				if err != nil {
					return err
				}
				get(name).served = spec
			}
		}
	}
	for _, v := range byName {
		if err := d.findEnforced(v); err != nil {
			return err
		}
		d.versions = append(d.versions, v)
	}
	slices.SortFunc(d.versions, func(a, b *version) int { return apiversion.CompareKubeAwareVersionStrings(b.name, a.name) })
	return nil
}

func (d *decider) findEnforced(v *version) error {
	for i := range d.Native {
		if d.Native[i].GroupVersion.Version == v.name {
			v.enforced, v.enforcedBy = d.Native[i].DeepCopy(), apiresourcev1alpha1.EnforcedByServer
			return nil
		}
	}
	crd := d.byHand()
	if servedVersion(crd, v.name) == nil {
		return nil
	}
	spec, err := SpecOf(crd, v.name)
	v.enforced, v.enforcedBy = spec, apiresourcev1alpha1.EnforcedByCRD
	return err
}

// stored asks what is stored in the CRD of ours; the answer is nil when nothing is.
// Until it is known the answer is that something is.
func (d *decider) stored() *apiresourcev1alpha1.Obstacle {
	return d.ask(Question{Key: storedKey})
}

// unfit asks which stored object does not fit a spec; nil when all do.
func (d *decider) unfit(spec *apiresourcev1alpha1.CommonAPIResourceSpec) (*apiresourcev1alpha1.Obstacle, error) {
	if d.ours() == nil {
		return nil, nil
	}
	key, err := fitKey(spec)
	if err != nil {
		return nil, err
	}
	return d.ask(Question{Key: key, Spec: spec}), nil
}

func (d *decider) ask(q Question) *apiresourcev1alpha1.Obstacle {
	if !apihelpers.IsCRDConditionTrue(d.CRD, apiextensionsv1.Established) {
		return nil // It was never served, so that nothing can be stored.
	}
	if answer, known := d.Answers[q.Key]; known {
		if answer != nil {
			d.plan.Recheck = true
		}
		return answer
	}
	if !d.asked.Has(q.Key) {
		d.asked.Insert(q.Key)
		d.plan.Ask = append(d.plan.Ask, q)
	}
	return &apiresourcev1alpha1.Obstacle{Path: ".", Reason: "the stored objects have not been looked at"}
}

// wanted is the NegotiatedAPIResource as it should be.
func (d *decider) wanted(v *version) *apiresourcev1alpha1.NegotiatedAPIResource {
	if v.disposition == dispositionNone {
		return nil
	}
	want := &apiresourcev1alpha1.NegotiatedAPIResource{}
	if v.have != nil {
		want = v.have.DeepCopy()
	}
	gvr := v.spec.GVR()
	want.Name = apiresourcev1alpha1.NegotiatedName(gvr)
	want.Spec.CommonAPIResourceSpec = *v.spec.DeepCopy()
	want.Annotations = notes(want.Annotations, map[string]string{
		apiresourcev1alpha1.APIVersionAnnotation: gvr.GroupVersion().String(),
		apiresourcev1alpha1.AgreedByAnnotation:   strings.Join(v.members, ","),
		apiresourcev1alpha1.EnforcedByAnnotation: v.enforcedBy,
	})
	if want.DeletionTimestamp == nil && !slices.Contains(want.Finalizers, apiresourcev1alpha1.Finalizer) {
		want.Finalizers = append(want.Finalizers, apiresourcev1alpha1.Finalizer)
	}
	switch v.disposition {
	case dispositionAgreed:
		want.Spec.Publish = false
	case dispositionPublished, dispositionEnforced:
		want.Spec.Publish = true
	}
	want.Status.Conditions = d.negotiatedConditions(v)
	return want
}

// notes sets annotations, and removes those whose value is empty.
func notes(have, set map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range have {
		out[k] = v
	}
	for k, v := range set {
		if v == "" {
			delete(out, k)
			continue
		}
		out[k] = v
	}
	return out
}
