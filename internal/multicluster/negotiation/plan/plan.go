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

// Decide returns what to write. It returns an error only if an object of the server cannot be
// read, such as the schema of a CRD. For invalid imports, it returns one ImportResult each.
func Decide(state State) (*Plan, error) { return decide(&decider{State: state}) }

// Preview decides as if every version of the resource were to be published now. The result is for
// display and must not be executed.
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
		d.plan.Versions = append(d.plan.Versions, Version{Name: v.name, Have: v.have, Want: d.wanted(v), ImportResults: d.importResults(v)})
	}
	return &d.plan, nil
}

// decider is the state of one decision.
type decider struct {
	State
	// preview also publishes versions that are not published.
	preview  bool
	plan     Plan
	versions []*version
	asked    sets.Set[string]
}

// disposition is what will happen to a version.
type disposition int

const (
	// dispositionNone: there is nothing to negotiate.
	dispositionNone disposition = iota
	// dispositionAgreed: negotiated and not published.
	dispositionAgreed
	// dispositionPublished: to be served by a CRD of negotiation.
	dispositionPublished
	// dispositionEnforced: served by a manual CRD or by the kcp itself.
	dispositionEnforced
	// dispositionRetiring: served by a CRD of negotiation, and to be removed.
	dispositionRetiring
)

// version is one version of the resource in a decision.
type version struct {
	name string
	all  []*candidate
	have *apiresourcev1alpha1.NegotiatedAPIResource
	// served is the version in a CRD of negotiation, or nil if no such CRD has it.
	served *apiresourcev1alpha1.CommonAPIResourceSpec
	// enforced is the version in a manual CRD or in the kcp itself. enforcedBy names which of the
	// two.
	enforced   *apiresourcev1alpha1.CommonAPIResourceSpec
	enforcedBy string

	disposition disposition
	spec        *apiresourcev1alpha1.CommonAPIResourceSpec
	// members are the clusters that are compatible with the spec. They are recorded.
	members []string
	// inUse is the stored object that keeps a retiring version.
	inUse *apiresourcev1alpha1.Obstacle
	// problem is why the CRD does not serve the spec.
	problem *problem
}

// problem is the reason and message of a condition.
type problem struct{ reason, message string }

// ours returns the CRD if negotiation created it and it is not being deleted.
func (d *decider) ours() *apiextensionsv1.CustomResourceDefinition {
	if d.CRD == nil || ending(d.CRD) || !negotiated(d.CRD) {
		return nil
	}
	return d.CRD
}

// byHand returns the CRD if another client created it and it is not being deleted.
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

// stored asks whether objects are stored in the CRD of negotiation. The answer is nil if no
// object is stored. Until the answer is known, objects count as stored.
func (d *decider) stored() *apiresourcev1alpha1.Obstacle {
	return d.ask(Question{Key: storedKey})
}

// firstMismatch asks which stored object does not fit a spec. The answer is nil if all fit.
func (d *decider) firstMismatch(spec *apiresourcev1alpha1.CommonAPIResourceSpec) (*apiresourcev1alpha1.Obstacle, error) {
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
		return nil // It was never served, so nothing can be stored.
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
	return &apiresourcev1alpha1.Obstacle{Path: ".", Reason: "the stored objects have not been checked"}
}

// wanted returns the desired NegotiatedAPIResource.
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
