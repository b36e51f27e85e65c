package plan

import (
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

// changeCRD determines the next step from the current CRD to the desired one.
func (d *decider) changeCRD() error {
	if d.hindered() {
		return nil
	}
	stay, removable, err := d.sortVersions()
	if err != nil {
		return err
	}
	crd := d.ours()
	if len(stay) == 0 {
		if crd != nil && len(crd.Spec.Versions) > 0 && len(removable) > 0 {
			d.plan.CRD = CRDChange{Action: CRDDelete, CRD: crd}
		}
		return nil
	}
	if slices.ContainsFunc(stay, func(v *version) bool { return v.have == nil }) {
		return nil // The owner is created first.
	}
	next, err := d.build(stay, removable)
	if err != nil {
		return err
	}
	d.plan.CRD = d.step(crd, next, removable)
	d.checkRefusal()
	return nil
}

// hindered reports whether there can be no CRD by negotiation. It sets the reason in every
// version that is to be published.
func (d *decider) hindered() bool {
	var p *problem
	switch {
	case d.Resource.Group == "":
		p = &problem{apiresourcev1alpha1.ReasonNotServable, "a CRD cannot be in the core group, whose name is empty: the kcp serves only its own types of that group"}
	case d.CRD != nil && ending(d.CRD):
		p = &problem{apiresourcev1alpha1.ReasonNotEstablished, fmt.Sprintf("CRD %s is being deleted; it is made again when it is gone", d.CRD.Name)}
	case d.byHand() != nil:
		p = &problem{apiresourcev1alpha1.ReasonNameConflict, fmt.Sprintf("CRD %s was made by hand and does not serve this version: add the version to it, or delete it", d.CRD.Name)}
	default:
		return false
	}
	for _, v := range d.versions {
		if v.disposition == dispositionPublished {
			v.problem = p
		}
	}
	return true
}

// sortVersions returns the versions that the CRD must have, and those of its current versions
// that may be removed.
func (d *decider) sortVersions() (stay []*version, removable sets.Set[string], err error) {
	removable = sets.New[string]()
	for _, v := range d.versions {
		switch {
		case v.disposition == dispositionPublished:
			ok, err := d.servable(v)
			if err != nil {
				return nil, nil, err
			}
			if ok {
				stay = append(stay, v)
			}
		case v.disposition == dispositionRetiring && v.inUse != nil:
			stay = append(stay, v)
		case v.served != nil:
			removable.Insert(v.name)
		}
	}
	if len(stay) == 0 && d.ours() != nil {
		// The CRD would be deleted as a whole, with the objects of all versions.
		if obstacle := d.stored(); obstacle != nil {
			stay, removable = d.keepAll(obstacle), sets.New[string]()
		}
	}
	return d.agreeing(stay), removable, nil
}

// keepAll keeps every retiring version because of a stored object.
func (d *decider) keepAll(obstacle *apiresourcev1alpha1.Obstacle) []*version {
	var stay []*version
	for _, v := range d.versions {
		if v.disposition == dispositionRetiring {
			v.inUse = obstacle
			stay = append(stay, v)
		}
	}
	return stay
}

// servable reports whether a version that is to be published can be in the CRD now.
func (d *decider) servable(v *version) (bool, error) {
	if v.have == nil {
		v.problem = &problem{apiresourcev1alpha1.ReasonNotEstablished, "the CRD is made next"}
		return v.served != nil, nil
	}
	if v.served != nil {
		return true, nil
	}
	obstacle, err := d.firstMismatch(v.spec)
	if obstacle != nil {
		v.problem = &problem{apiresourcev1alpha1.ReasonInUse,
			fmt.Sprintf("objects that are stored in another version do not fit this one: %s: %s", obstacle.Path, obstacle.Reason)}
	}
	return obstacle == nil, err
}

// agreeing removes versions that cannot be in one CRD with those that are served. If none is
// served, it compares with the highest one.
func (d *decider) agreeing(stay []*version) []*version {
	var names *apiresourcev1alpha1.CommonAPIResourceSpec
	for _, v := range stay {
		if v.served != nil {
			names = v.served
			break
		}
	}
	if names == nil && len(stay) > 0 {
		names = stay[0].spec
	}
	return slices.DeleteFunc(stay, func(v *version) bool {
		if v.served != nil || v.spec.Scope == names.Scope && v.spec.Names.Kind == names.Names.Kind {
			return false
		}
		v.problem = &problem{apiresourcev1alpha1.ReasonNameConflict, fmt.Sprintf(
			"version %s of the resource is %s %s, and this one %s %s: one CRD cannot serve both",
			names.GroupVersion.Version, names.Scope, names.Names.Kind, v.spec.Scope, v.spec.Names.Kind)}
		return true
	})
}

// build returns the CRD with the versions in stay. Versions that may be removed but cannot be
// removed yet stay unchanged. The highest version in stay becomes the storage version.
func (d *decider) build(stay []*version, removable sets.Set[string]) (*apiextensionsv1.CustomResourceDefinition, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: d.Resource.String()}}
	if ours := d.ours(); ours != nil {
		crd = ours.DeepCopy()
	}
	first := stay[0].spec
	names := first.Names
	names.Plural = d.Resource.Resource
	var versions []apiextensionsv1.CustomResourceDefinitionVersion
	for _, v := range stay {
		entry, err := VersionOf(v.spec)
		if err != nil {
			return nil, fmt.Errorf("writing version %s of CRD %s: %w", v.name, crd.Name, err)
		}
		versions = append(versions, entry)
	}
	versions[0].Storage = true
	for _, old := range crd.Spec.Versions {
		if removable.Has(old.Name) && slices.Contains(crd.Status.StoredVersions, old.Name) {
			old.Storage = false
			versions = append(versions, old)
		}
	}
	crd.Spec = apiextensionsv1.CustomResourceDefinitionSpec{
		Group: d.Resource.Group, Names: fullNames(names), Scope: first.Scope, Versions: versions,
		Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter},
	}
	crd.Annotations = notes(crd.Annotations, map[string]string{apiresourcev1alpha1.NegotiatedAnnotation: "true"})
	if apihelpers.IsProtectedCommunityGroup(d.Resource.Group) && crd.Annotations[apiextensionsv1.KubeAPIApprovedAnnotation] == "" {
		crd.Annotations[apiextensionsv1.KubeAPIApprovedAnnotation] = approval
	}
	crd.OwnerReferences = d.owners()
	return crd, nil
}

// owners returns the owners of the CRD: the NegotiatedAPIResource of every version, and the
// anchor. It leaves out resources that are being deleted, because the garbage collector would
// remove them again.
func (d *decider) owners() []metav1.OwnerReference {
	var out []metav1.OwnerReference
	for _, v := range d.versions {
		if v.have != nil && v.have.DeletionTimestamp == nil && (v.disposition == dispositionPublished || v.disposition == dispositionRetiring) {
			out = append(out, metav1.OwnerReference{
				APIVersion: apiresourcev1alpha1.SchemeGroupVersion.String(), Kind: negotiatedKind, Name: v.have.Name, UID: v.have.UID})
		}
	}
	if d.Anchor != nil {
		out = append(out, *d.Anchor)
	}
	return out
}

const negotiatedKind = "NegotiatedAPIResource"

func isOwner(o metav1.OwnerReference) bool {
	return o.Kind == negotiatedKind && o.APIVersion == apiresourcev1alpha1.SchemeGroupVersion.String()
}

// step returns the next write from one CRD to another.
func (d *decider) step(have, next *apiextensionsv1.CustomResourceDefinition, removable sets.Set[string]) CRDChange {
	if have == nil {
		return CRDChange{Action: CRDCreate, CRD: next}
	}
	if !equality.Semantic.DeepEqual(have.Spec, next.Spec) || !equality.Semantic.DeepEqual(have.OwnerReferences, next.OwnerReferences) ||
		!equality.Semantic.DeepEqual(have.Annotations, next.Annotations) {
		return CRDChange{Action: CRDUpdate, CRD: next}
	}
	trimmed := slices.DeleteFunc(slices.Clone(have.Status.StoredVersions), removable.Has)
	if len(trimmed) == len(have.Status.StoredVersions) {
		return CRDChange{}
	}
	next.Status.StoredVersions = trimmed
	return CRDChange{Action: CRDTrim, CRD: next}
}

// checkRefusal sets the server's error in every version that would have changed.
func (d *decider) checkRefusal() {
	if d.Refused == "" {
		return
	}
	for _, v := range d.versions {
		if v.disposition == dispositionPublished && v.problem == nil && (v.served == nil || !equal(v.served, v.spec)) {
			v.problem = &problem{apiresourcev1alpha1.ReasonInvalidSchema, "the API server refuses the CRD: " + d.Refused}
		}
	}
}
