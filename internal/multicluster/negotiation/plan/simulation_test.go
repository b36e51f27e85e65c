package plan

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

var widgets = schema.GroupResource{Group: "example.org", Resource: "widgets"}

// simulation executes plans as the controller and the API server do, in memory. It also adds what the
// server adds: UIDs, storedVersions, and conditions of CRDs.
type simulation struct {
	tb      testing.TB
	state   State
	objects []*unstructured.Unstructured
	uids    int
	last    *Plan
}

func newSimulation(tb testing.TB) *simulation {
	tb.Helper()
	return &simulation{tb: tb, state: State{Resource: widgets, Founded: map[string]time.Time{},
		Anchor: &metav1.OwnerReference{APIVersion: "v1", Kind: "Namespace", Name: "kube-system", UID: "anchor"}}}
}

// settle makes passes until one changes nothing.
func (w *simulation) settle() *Plan {
	w.tb.Helper()
	for range 20 {
		before := w.picture()
		w.pass()
		if cmp.Equal(before, w.picture()) {
			return w.last
		}
	}
	w.tb.Fatalf("no end of changes; the last plan: CRD %q, %s", w.last.CRD.Action, w.picture())
	return nil
}

// picture returns everything that a pass may change.
func (w *simulation) picture() string {
	data, err := json.Marshal([]any{w.state.Imports, w.state.Negotiated, w.state.CRD})
	if err != nil {
		w.tb.Fatal(err)
	}
	return string(data)
}

func (w *simulation) decide() *Plan {
	w.tb.Helper()
	w.state.Answers = Answers{}
	for range 50 {
		p, err := Decide(w.state)
		if err != nil {
			w.tb.Fatalf("Decide() = %v", err)
		}
		if len(p.Ask) == 0 {
			return p
		}
		answers, err := Answer(w.tb.Context(), p.Ask, w.stored())
		if err != nil {
			w.tb.Fatalf("Answer() = %v", err)
		}
		maps.Copy(w.state.Answers, answers)
	}
	w.tb.Fatal("no end of questions")
	return nil
}

func (w *simulation) stored() iter.Seq2[*unstructured.Unstructured, error] {
	return func(yield func(*unstructured.Unstructured, error) bool) {
		for _, o := range w.objects {
			if !yield(o, nil) {
				return
			}
		}
	}
}

func (w *simulation) pass() {
	w.tb.Helper()
	p := w.decide()
	w.last = p
	var negotiated []*apiresourcev1alpha1.NegotiatedAPIResource
	for i := range p.Versions {
		v := &p.Versions[i]
		if v.Want == nil {
			continue
		}
		n := v.Want.DeepCopy()
		if n.UID == "" {
			n.UID = w.uid()
		}
		negotiated = append(negotiated, n)
		for _, result := range v.ImportResults {
			w.statusOf(result)
		}
	}
	for i := range p.Versions {
		if p.Versions[i].Want == nil {
			for _, result := range p.Versions[i].ImportResults {
				w.statusOf(result)
			}
		}
	}
	w.state.Negotiated = negotiated
	w.writeCRD(p.CRD)
}

func (w *simulation) statusOf(result ImportResult) {
	for _, i := range w.state.Imports {
		if i.Name == result.Import.Name {
			i.Status = *result.Status.DeepCopy()
		}
	}
}

func (w *simulation) writeCRD(change CRDChange) {
	switch change.Action {
	case CRDCreate, CRDUpdate:
		crd := change.CRD.DeepCopy()
		if change.Action == CRDCreate {
			crd.UID = w.uid()
		}
		for i := range crd.Spec.Versions {
			if v := &crd.Spec.Versions[i]; v.Storage && !slices.Contains(crd.Status.StoredVersions, v.Name) {
				crd.Status.StoredVersions = append(crd.Status.StoredVersions, v.Name)
			}
		}
		for _, stored := range crd.Status.StoredVersions {
			if servedVersion(crd, stored) == nil {
				w.tb.Fatalf("the server would refuse to take %s, which is in storedVersions, out of the CRD", stored)
			}
		}
		crd.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{
			{Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue},
			{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue},
		}
		w.state.CRD = crd
	case CRDTrim:
		w.state.CRD = change.CRD.DeepCopy()
	case CRDDelete:
		if len(w.objects) > 0 {
			w.tb.Fatalf("the CRD is deleted, and with it %d objects", len(w.objects))
		}
		w.state.CRD = nil
	}
}

func (w *simulation) uid() types.UID {
	w.uids++
	return types.UID(fmt.Sprintf("uid-%d", w.uids))
}

// offer adds an import, or replaces the one of the same version and location.
func (w *simulation) offer(i *apiresourcev1alpha1.APIResourceImport) {
	w.withdraw(i.Spec.Location, i.Spec.GroupVersion.Version)
	w.state.Imports = append(w.state.Imports, i.DeepCopy())
}

// withdraw removes an import.
func (w *simulation) withdraw(location, version string) {
	w.state.Imports = slices.DeleteFunc(w.state.Imports, func(i *apiresourcev1alpha1.APIResourceImport) bool {
		return i.Spec.Location == location && i.Spec.GroupVersion.Version == version
	})
}

func (w *simulation) publish(version string, publish bool) {
	w.negotiated(version).Spec.Publish = publish
}

func (w *simulation) negotiated(version string) *apiresourcev1alpha1.NegotiatedAPIResource {
	w.tb.Helper()
	for _, n := range w.state.Negotiated {
		if n.Spec.GroupVersion.Version == version {
			return n
		}
	}
	w.tb.Fatalf("version %s is not negotiated", version)
	return nil
}

// store stores an object with a spec.
func (w *simulation) store(name string, spec map[string]any) {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetAPIVersion("example.org/v1")
	o.SetKind("Widget")
	o.SetNamespace("shop")
	o.SetName(name)
	w.objects = append(w.objects, o)
}

// check compares the conditions of a version and of its imports, in the form "Published=True
// InUse=True" and "a: Compatible=True".
func (w *simulation) check(version string, want string, imports ...string) {
	w.tb.Helper()
	if got := conditionsOf(w.negotiated(version).Status.Conditions); got != want {
		w.tb.Errorf("conditions of the negotiated %s = %q, want %q", version, got, want)
	}
	var got []string
	for _, i := range w.state.Imports {
		if i.Spec.GroupVersion.Version == version {
			got = append(got, i.Spec.Location+": "+conditionsOf(i.Status.Conditions))
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(imports, got); diff != "" {
		w.tb.Errorf("conditions of the imports of %s (-want +got):\n%s", version, diff)
	}
}

// conditionsOf returns conditions in short form, with a reason only if they are False.
func conditionsOf(all []metav1.Condition) string {
	var out string
	for _, c := range all {
		if out != "" {
			out += " "
		}
		out += c.Type + "=" + string(c.Status)
		if c.Status == metav1.ConditionFalse && c.Type != apiresourcev1alpha1.ConditionEnforced {
			out += "(" + c.Reason + ")"
		}
	}
	return out
}

// fields returns the fields of .spec in a schema, sorted.
func fields(tb testing.TB, spec *apiresourcev1alpha1.CommonAPIResourceSpec) []string {
	tb.Helper()
	props := &apiextensionsv1.JSONSchemaProps{}
	if err := json.Unmarshal(spec.OpenAPIV3Schema.Raw, props); err != nil {
		tb.Fatal(err)
	}
	return slices.Sorted(maps.Keys(props.Properties["spec"].Properties))
}

func (w *simulation) checkFields(version string, want ...string) {
	w.tb.Helper()
	if diff := cmp.Diff(want, fields(w.tb, &w.negotiated(version).Spec.CommonAPIResourceSpec)); diff != "" {
		w.tb.Errorf("fields of the negotiated %s (-want +got):\n%s", version, diff)
	}
}

// served returns the versions of the CRD, and marks the storage version.
func (w *simulation) served() []string {
	if w.state.CRD == nil {
		return nil
	}
	var out []string
	for _, v := range w.state.CRD.Spec.Versions {
		name := v.Name
		if v.Storage {
			name += "*"
		}
		out = append(out, name)
	}
	return out
}

func (w *simulation) checkServed(want ...string) {
	w.tb.Helper()
	if diff := cmp.Diff(want, w.served()); diff != "" {
		w.tb.Errorf("versions of the CRD (-want +got):\n%s", diff)
	}
}

// widget returns an import of v1 with the given properties of .spec, as JSON.
func widget(location, properties string) *apiresourcev1alpha1.APIResourceImport {
	return widgetOf(location, "v1", properties)
}

// widgetOf returns an import of a version that requires some fields of .spec.
func widgetOf(location, version, properties string, required ...string) *apiresourcev1alpha1.APIResourceImport {
	names, root := []byte("[]"), "[]"
	if len(required) > 0 {
		// Otherwise spec would be dropped if its fields cannot agree.
		names, root = []byte(`["`+strings.Join(required, `","`)+`"]`), `["spec"]`
	}
	raw := fmt.Sprintf(`{"type":"object","required":%s,"properties":{"apiVersion":{"type":"string"},"kind":{"type":"string"},"metadata":{"type":"object"},`+
		`"spec":{"type":"object","required":%s,"properties":%s}}}`, root, names, properties)
	i := &apiresourcev1alpha1.APIResourceImport{Spec: apiresourcev1alpha1.APIResourceImportSpec{
		Location: location, SchemaUpdateStrategy: apiresourcev1alpha1.UpdateUnpublished,
		CommonAPIResourceSpec: apiresourcev1alpha1.CommonAPIResourceSpec{
			GroupVersion:    apiresourcev1alpha1.GroupVersion{Group: widgets.Group, Version: version},
			Scope:           apiextensionsv1.NamespaceScoped,
			Names:           apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"},
			OpenAPIV3Schema: runtime.RawExtension{Raw: []byte(raw)},
		}}}
	i.Name = apiresourcev1alpha1.ImportName(i.Spec.GVR(), location)
	return i
}

func strategy(i *apiresourcev1alpha1.APIResourceImport, s apiresourcev1alpha1.SchemaUpdateStrategy) *apiresourcev1alpha1.APIResourceImport {
	i = i.DeepCopy()
	i.Spec.SchemaUpdateStrategy = s
	return i
}

// byHand returns a manual CRD with the schema of an import.
func byHand(tb testing.TB, i *apiresourcev1alpha1.APIResourceImport) *apiextensionsv1.CustomResourceDefinition {
	tb.Helper()
	v, err := VersionOf(&i.Spec.CommonAPIResourceSpec)
	if err != nil {
		tb.Fatal(err)
	}
	v.Storage = true
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: widgets.String(), UID: "by-hand"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: widgets.Group, Names: i.Spec.Names, Scope: i.Spec.Scope,
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{v}},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{StoredVersions: []string{v.Name},
			Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{
				{Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue},
				{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}},
	}
}

const (
	onlyA  = `{"a":{"type":"string"}}`
	onlyB  = `{"b":{"type":"string"}}`
	aAndB  = `{"a":{"type":"string"},"b":{"type":"string"}}`
	aIsInt = `{"a":{"type":"integer"}}`
)

// agreed returns the results of negotiation for a version, without values that differ between two
// simulations with the same history.
func agreed(w *simulation, version string) (*apiresourcev1alpha1.NegotiatedAPIResource, map[string]apiresourcev1alpha1.APIResourceImportStatus) {
	statuses := map[string]apiresourcev1alpha1.APIResourceImportStatus{}
	for _, i := range w.state.Imports {
		if i.Spec.GroupVersion.Version == version {
			statuses[i.Name] = i.Status
		}
	}
	for _, n := range w.state.Negotiated {
		if n.Spec.GroupVersion.Version == version {
			n = n.DeepCopy()
			n.UID = ""
			return n, statuses
		}
	}
	return nil, statuses
}

func isTrue(conditions []metav1.Condition, kind string) bool {
	return meta.IsStatusConditionTrue(conditions, kind)
}
