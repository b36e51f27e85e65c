package negotiation_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/testkit/served"
)

func keyOf(o client.Object) client.ObjectKey { return client.ObjectKeyFromObject(o) }

// TestStoredObjectsKeepTheirFields tests that a published schema is narrowed only when no stored
// object loses anything.
func TestStoredObjectsKeepTheirFields(t *testing.T) {
	t.Parallel()
	s := publishing(t)
	a := s.offer(t, "a", wide)
	s.create(t, a)
	s.shows(t, "widgets.example.org", "import a v1 True/True", "negotiated v1 publish=true True/False")
	one := s.store(t, `{apiVersion: example.org/v1, kind: Widget, metadata: {name: one, namespace: default}, spec: {color: red, size: 7}}`)
	b := s.offer(t, "b", narrow)
	b.Spec.SchemaUpdateStrategy = apiresourcev1alpha1.UpdatePublished
	s.create(t, b)
	s.shows(t, "widgets.example.org", "import a v1 True/True", "import b v1 False(IncompatibleSchema)/", "negotiated v1 publish=true True/False")
	poll.Until(t, served.Timeout, "the obstacle is the stored object", func(ctx context.Context) error {
		i := &apiresourcev1alpha1.APIResourceImport{}
		if err := s.c.Get(ctx, keyOf(b), i); err != nil {
			return err
		}
		if first := i.Status.Obstacles[0]; first.Path != ".spec.size" || !strings.Contains(first.Reason, `"one" in namespace "default"`) {
			return fmt.Errorf("it is %+v", first)
		}
		return nil
	})
	if got := fmt.Sprint(s.read(t, one)); got != "map[color:red size:7]" {
		t.Errorf("the stored object is %s now", got)
	}
	s.patch(t, one.DeepCopy(), `{"spec":{"size":null}}`)
	s.shows(t, "widgets.example.org", "import a v1 True/True", "import b v1 True/True", "negotiated v1 publish=true True/False")
	s.negotiates(t, "widgets.v1.example.org", "color")
	if got := fmt.Sprint(s.read(t, one)); got != "map[color:red]" {
		t.Errorf("the stored object is %s now", got)
	}
}

// TestDeletedNegotiatedTakesNothingAlong tests that deleting a NegotiatedAPIResource does not
// delete the CRD, even if the garbage collector is to delete its dependents first.
func TestDeletedNegotiatedTakesNothingAlong(t *testing.T) {
	t.Parallel()
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			s := publishing(t)
			s.create(t, s.offer(t, "a", wide))
			s.shows(t, "widgets.example.org", "import a v1 True/True", "negotiated v1 publish=true True/False")
			one := s.store(t, `{apiVersion: example.org/v1, kind: Widget, metadata: {name: one, namespace: default}, spec: {color: red}}`)
			s.delete(t, s.named("widgets.v1.example.org"), client.PropagationPolicy(policy))
			s.shows(t, "widgets.example.org", "import a v1 True/False(InUse)", "negotiated v1 publish=true True/False InUse=True")
			if got := fmt.Sprint(s.read(t, one)); got != "map[color:red]" {
				t.Errorf("the stored object is %s now", got)
			}
			s.delete(t, one)
			// It is created again from the import.
			poll.Until(t, served.Timeout, "the type is negotiated anew", func(ctx context.Context) error {
				n := s.named("widgets.v1.example.org")
				if err := s.c.Get(ctx, keyOf(n), n); err != nil {
					return err
				}
				if n.DeletionTimestamp != nil {
					return errors.New("it is still being deleted")
				}
				return nil
			})
			s.shows(t, "widgets.example.org", "import a v1 True/True", "negotiated v1 publish=true True/False")
		})
	}
}

// TestNameConflictAndRefusal tests that the API server's errors about a CRD appear in a
// condition.
func TestNameConflictAndRefusal(t *testing.T) {
	t.Parallel()
	s := publishing(t)
	s.create(t, s.offer(t, "a", wide))
	s.shows(t, "widgets.example.org", "import a v1 True/True", "negotiated v1 publish=true True/False")

	other := s.offer(t, "a", wide)
	// with the kind of widgets
	other.Spec.Names.Plural, other.Spec.Names.Singular = "gadgets", "gadget"
	other.Name = apiresourcev1alpha1.ImportName(other.Spec.GVR(), "a")
	s.create(t, other)
	s.shows(t, "gadgets.example.org", "import a v1 True/False(NameConflict)", "negotiated v1 publish=true False(NameConflict)/False")

	refused := s.offer(t, "a", wide)
	refused.Spec.GroupVersion.Group, refused.Spec.Names.Kind = s.local("other.example.org"), "Not A Kind"
	refused.Name = apiresourcev1alpha1.ImportName(refused.Spec.GVR(), "a")
	s.create(t, refused)
	s.shows(t, "widgets.other.example.org", "import a v1 True/False(InvalidSchema)", "negotiated v1 publish=true False(InvalidSchema)/False")
	n := s.named("widgets.v1.other.example.org")
	if err := s.c.Get(t.Context(), keyOf(n), n); err != nil {
		t.Fatal(err)
	}
	if message := n.Status.Conditions[0].Message; !strings.Contains(message, "spec.names.kind") {
		t.Errorf("the message is %q, which does not say what the API server refuses", message)
	}
}

// TestWritesBetweenReadAndChange tests an object that is written after the controller has read
// the stored objects and before it changes the CRD. The object still counts.
func TestWritesBetweenReadAndChange(t *testing.T) {
	t.Parallel()
	const sized = `{apiVersion: example.org/v1, kind: Widget, metadata: {name: one, namespace: default}, spec: {size: 7}}`
	t.Run("narrowing", func(t *testing.T) {
		t.Parallel()
		s := publishing(t)
		s.create(t, s.offer(t, "a", wide))
		s.shows(t, "widgets.example.org", "import a v1 True/True", "negotiated v1 publish=true True/False")
		var one *unstructured.Unstructured
		done := s.beforeCRD(t, http.MethodPut, "", func() { one = s.store(t, sized) })
		b := s.offer(t, "b", narrow)
		b.Spec.SchemaUpdateStrategy = apiresourcev1alpha1.UpdatePublished
		s.create(t, b)
		<-done
		s.shows(t, "widgets.example.org", "import a v1 True/True", "import b v1 False(IncompatibleSchema)/", "negotiated v1 publish=true True/False")
		if got := fmt.Sprint(s.read(t, one)); got != "map[size:7]" {
			t.Errorf("the stored object is %s now", got)
		}
		s.negotiates(t, "widgets.v1.example.org", "color", "size")
		s.delete(t, one)
		s.shows(t, "widgets.example.org", "import a v1 True/True", "import b v1 True/True", "negotiated v1 publish=true True/False")
		s.negotiates(t, "widgets.v1.example.org", "color")
	})
	t.Run("the last import leaves", func(t *testing.T) {
		t.Parallel()
		s := publishing(t)
		a := s.offer(t, "a", wide)
		s.create(t, a)
		s.shows(t, "widgets.example.org", "import a v1 True/True", "negotiated v1 publish=true True/False")
		var one *unstructured.Unstructured
		done := s.beforeCRD(t, http.MethodDelete, "", func() { one = s.store(t, sized) })
		s.delete(t, a)
		<-done
		s.shows(t, "widgets.example.org", "negotiated v1 publish=true True/False InUse=True")
		if got := fmt.Sprint(s.read(t, one)); got != "map[size:7]" {
			t.Errorf("the stored object is %s now", got)
		}
		s.delete(t, one)
		s.shows(t, "widgets.example.org")
		s.serves(t, widgets)
	})
	t.Run("a version leaves", func(t *testing.T) {
		t.Parallel()
		s := publishing(t)
		v1 := s.offer(t, "a", wide)
		s.create(t, version(s.offer(t, "a", wide), "v1beta1"))
		s.create(t, v1)
		s.shows(t, "widgets.example.org", "import a v1 True/True", "import a v1beta1 True/True",
			"negotiated v1 publish=true True/False", "negotiated v1beta1 publish=true True/False")
		var one *unstructured.Unstructured
		done := s.beforeCRD(t, http.MethodPut, "/status", func() { one = s.store(t, sized) })
		s.delete(t, v1)
		<-done
		s.shows(t, "widgets.example.org", "import a v1beta1 True/True",
			"negotiated v1 publish=true True/False InUse=True", "negotiated v1beta1 publish=true True/False")
		if got := fmt.Sprint(s.read(t, one)); got != "map[size:7]" {
			t.Errorf("the stored object is %s now", got)
		}
		s.delete(t, one)
		s.shows(t, "widgets.example.org", "import a v1beta1 True/True", "negotiated v1beta1 publish=true True/False")
		s.serves(t, widgets, "v1beta1")
	})
}

// TestNegotiatedCRDIsNotDeletedWithObjects tests that a CRD with stored objects cannot be
// deleted, even manually.
func TestNegotiatedCRDIsNotDeletedWithObjects(t *testing.T) {
	t.Parallel()
	s := publishing(t)
	s.create(t, s.offer(t, "a", wide))
	s.shows(t, "widgets.example.org", "import a v1 True/True", "negotiated v1 publish=true True/False")
	one := s.store(t, `{apiVersion: example.org/v1, kind: Widget, metadata: {name: one, namespace: default}, spec: {size: 7}}`)
	crd, err := s.crd(t.Context(), "widgets.example.org")
	if err != nil {
		t.Fatal(err)
	}
	for _, options := range [][]client.DeleteOption{{client.DryRunAll}, nil} {
		if err := s.c.Delete(t.Context(), crd, options...); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `"one" in namespace "default"`) {
			t.Errorf("deleting the CRD with %v = %v, want a conflict that names the object", options, err)
		}
	}
	if err := s.c.DeleteAllOf(t.Context(), crd, client.MatchingFields{"metadata.name": crd.Name}); !apierrors.IsConflict(err) {
		t.Errorf("deleting all CRDs of the name = %v, want a conflict", err)
	}
	if got := fmt.Sprint(s.read(t, one)); got != "map[size:7]" {
		t.Errorf("the stored object is %s now", got)
	}
}

// TestManualCRDIsFollowed tests that a manual CRD takes effect even if it is created after the
// imports, and that its changes take effect too.
func TestManualCRDIsFollowed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.create(t, s.offer(t, "a", narrow))
	s.shows(t, "widgets.example.org", "import a v1 True/", "negotiated v1 publish=false /")
	s.create(t, s.definition(t, wide))
	s.shows(t, "widgets.example.org", "import a v1 False(IncompatibleSchema)/", "negotiated v1 publish=true True/True")
	crd, err := s.crd(t.Context(), "widgets.example.org")
	if err != nil {
		t.Fatal(err)
	}
	crd.Spec.Versions[0].Schema = s.definition(t, narrow).Spec.Versions[0].Schema
	s.patch(t, crd, string(mustJSON(t, map[string]any{"spec": map[string]any{"versions": crd.Spec.Versions}})))
	s.shows(t, "widgets.example.org", "import a v1 True/True", "negotiated v1 publish=true True/True")
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestNativeTypesAreEnforced tests that imports of types that the kcp itself serves are checked,
// and that no CRD is created.
func TestNativeTypesAreEnforced(t *testing.T) {
	t.Parallel()
	s := publishing(t)
	alike := s.offer(t, "a", "configmaps.yaml")
	s.create(t, alike)
	s.shows(t, "configmaps", "import a v1 True/True", "negotiated v1 publish=true True/True")
	lacking := s.offer(t, "b", "configmaps.yaml")
	lacking.Spec.OpenAPIV3Schema.Raw = []byte(`{"type":"object","properties":{"apiVersion":{"type":"string"},"kind":{"type":"string"},"metadata":{"type":"object"}}}`)
	lacking.Spec.SchemaUpdateStrategy = apiresourcev1alpha1.UpdatePublished
	s.create(t, lacking)
	s.shows(t, "configmaps", "import a v1 True/True", "import b v1 False(IncompatibleSchema)/", "negotiated v1 publish=true True/True")
	if _, err := s.crd(t.Context(), "configmaps"); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("reading a CRD of configmaps = %v, want none", err)
	}
	s.delete(t, alike)
	s.delete(t, lacking)
	s.shows(t, "configmaps")
}

// TestAtRestNothingIsWritten compares resource versions over several checks of the stored
// objects.
func TestAtRestNothingIsWritten(t *testing.T) {
	t.Parallel()
	s := publishing(t)
	s.create(t, s.offer(t, "a", full))
	s.create(t, s.offer(t, "b", older))
	s.create(t, s.offer(t, "c", wide))
	s.shows(t, "widgets.example.org", "import c v1 True/True", "negotiated v1 publish=true True/False")
	poll.Until(t, served.Timeout, "the deployments have settled", func(ctx context.Context) error {
		lines, err := s.table(ctx, "deployments.apps")
		if err == nil && !slices.Contains(lines, "negotiated v1 publish=true True/False") {
			err = fmt.Errorf("they are %v", lines)
		}
		return err
	})
	before := s.versions(t)
	// A change without effect causes passes over both types.
	for range 5 {
		for _, name := range []string{"deployments.a.v1.apps", "widgets.c.v1.example.org"} {
			i := &apiresourcev1alpha1.APIResourceImport{ObjectMeta: metav1.ObjectMeta{Name: s.local(name)}}
			s.patch(t, i, fmt.Sprintf(`{"metadata":{"labels":{"touched":"%d"}}}`, len(before)))
			s.patch(t, i, `{"metadata":{"labels":null}}`)
		}
	}
	s.create(t, version(s.offer(t, "d", wide), "v2"))
	poll.Until(t, served.Timeout, "the passes are over", func(ctx context.Context) error {
		lines, err := s.table(ctx, "widgets.example.org")
		if err == nil && !slices.Contains(lines, "import d v2 True/True") {
			err = fmt.Errorf("they are %v", lines)
		}
		return err
	})
	for name, resourceVersion := range s.versions(t) {
		if was, known := before[name]; known && was != resourceVersion && !strings.Contains(name, s.local("widgets.example.org")) {
			t.Errorf("%s was written at rest: resource version %s, then %s", name, was, resourceVersion)
		}
	}
}

// versions returns the resource versions of what the controller writes, without imports.
func (s *site) versions(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	var negotiated apiresourcev1alpha1.NegotiatedAPIResourceList
	if err := s.c.List(t.Context(), &negotiated); err != nil {
		t.Fatal(err)
	}
	for _, n := range negotiated.Items {
		if n.Spec.GroupVersion.Group == s.group || n.Spec.GroupVersion.Group == deployments.Group {
			out[n.Name] = n.ResourceVersion
		}
	}
	for _, name := range []string{"deployments.apps", "widgets.example.org"} {
		crd, err := s.crd(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		out[s.local(name)] = crd.ResourceVersion
	}
	return out
}
