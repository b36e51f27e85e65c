package negotiate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/negotiation/plan"
	"rik.dev/rik/internal/rikctl/clierror"
)

// negotiations returns the states of the types that clusters offer or that are negotiated,
// sorted by name. A word that is not empty limits them to the types that it names.
func (t *tool) negotiations(ctx context.Context, word string) ([]plan.State, error) {
	c, err := t.Client()
	if err != nil {
		return nil, err
	}
	live, err := readNegotiation(ctx, c)
	if err != nil {
		return nil, notKCP(err)
	}
	states := live.states()
	if word == "" {
		return states, nil
	}
	states = slices.DeleteFunc(states, func(s plan.State) bool {
		return word != s.Resource.Resource && word != s.Resource.String()
	})
	if len(states) == 0 {
		return nil, clierror.WithNext(fmt.Errorf("%s not found: no cluster offers it, and it is not negotiated", word),
			`"rikctl api negotiate --plan" shows all types, and "rikctl get apiresourceimports" what each cluster offers`)
	}
	return states, nil
}

// negotiationState holds all objects that negotiation reads.
type negotiationState struct {
	imports    []apiresourcev1alpha1.APIResourceImport
	negotiated []apiresourcev1alpha1.NegotiatedAPIResource
	crds       []apiextensionsv1.CustomResourceDefinition
	clusters   []metav1.PartialObjectMetadata
}

func readNegotiation(ctx context.Context, c client.Reader) (*negotiationState, error) {
	var imports apiresourcev1alpha1.APIResourceImportList
	if err := c.List(ctx, &imports); err != nil {
		return nil, err
	}
	var negotiated apiresourcev1alpha1.NegotiatedAPIResourceList
	if err := c.List(ctx, &negotiated); err != nil {
		return nil, err
	}
	var crds apiextensionsv1.CustomResourceDefinitionList
	if err := c.List(ctx, &crds); err != nil {
		return nil, err
	}
	clusters := metav1.PartialObjectMetadataList{}
	clusters.SetGroupVersionKind(workloadv1alpha1.SchemeGroupVersion.WithKind("ClusterList"))
	if err := c.List(ctx, &clusters); err != nil {
		return nil, err
	}
	return &negotiationState{imports.Items, negotiated.Items, crds.Items, clusters.Items}, nil
}

// states groups the objects by resource.
func (n *negotiationState) states() []plan.State {
	founded := map[string]time.Time{}
	for i := range n.clusters {
		founded[n.clusters[i].Name] = n.clusters[i].CreationTimestamp.Time
	}
	byKey := map[schema.GroupResource]*plan.State{}
	get := func(spec *apiresourcev1alpha1.CommonAPIResourceSpec) *plan.State {
		key := spec.GVR().GroupResource()
		if byKey[key] == nil {
			byKey[key] = &plan.State{Resource: key, Founded: founded}
		}
		return byKey[key]
	}
	for i := range n.imports {
		s := get(&n.imports[i].Spec.CommonAPIResourceSpec)
		s.Imports = append(s.Imports, &n.imports[i])
	}
	for i := range n.negotiated {
		r := &n.negotiated[i]
		s := get(&r.Spec.CommonAPIResourceSpec)
		s.Negotiated = append(s.Negotiated, r)
		if r.Annotations[apiresourcev1alpha1.EnforcedByAnnotation] == apiresourcev1alpha1.EnforcedByServer {
			s.Native = append(s.Native, r.Spec.CommonAPIResourceSpec)
		}
	}
	for i := range n.crds {
		key := schema.GroupResource{Group: n.crds[i].Spec.Group, Resource: n.crds[i].Spec.Names.Plural}
		if s := byKey[key]; s != nil {
			s.CRD = &n.crds[i]
		}
	}
	out := make([]plan.State, 0, len(byKey))
	for _, s := range byKey {
		out = append(out, *s)
	}
	slices.SortFunc(out, func(a, b plan.State) int { return cmp.Compare(a.Resource.String(), b.Resource.String()) })
	return out
}
