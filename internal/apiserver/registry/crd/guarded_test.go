package crd_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	"rik.dev/rik/internal/testkit/kcptest"
)

// properties is a schema whose spec has the given fields, all of them integers.
func properties(fields ...string) map[string]any {
	spec := map[string]any{}
	for _, f := range fields {
		spec[f] = map[string]any{"type": "integer"}
	}
	return map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
		"spec": map[string]any{"type": "object", "properties": spec}}}}
}

// keeping is a negotiated type that is served.
type keeping struct {
	crd     string
	crds    clientset.Interface
	objects dynamic.ResourceInterface
}

func newKeeping(t *testing.T, group string) *keeping {
	t.Helper()
	s := kcptest.Shared(t)
	crds, err := clientset.NewForConfig(kcptest.LoopbackConfig(s))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(kcptest.LoopbackConfig(s))
	if err != nil {
		t.Fatal(err)
	}
	crd := jobs(group)
	crd.Annotations = map[string]string{apiresourcev1alpha1.NegotiatedAnnotation: "true"}
	if _, err := crds.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	k := &keeping{crd: crd.Name, crds: crds,
		objects: objects.Resource(schema.GroupVersionResource{Group: group, Version: "v1", Resource: "jobs"}).Namespace(s.Namespace(t))}
	eventually(t, "the type is served", func(ctx context.Context) (bool, error) {
		_, err := k.objects.List(ctx, metav1.ListOptions{})
		return err == nil, nil
	})
	return k
}

// serve sets the schema of the type.
func (k *keeping) serve(ctx context.Context, schema map[string]any) error {
	patch, err := json.Marshal([]map[string]any{{"op": "replace", "path": "/spec/versions/0/schema", "value": schema}})
	if err != nil {
		return err
	}
	_, err = k.crds.ApiextensionsV1().CustomResourceDefinitions().Patch(ctx, k.crd, types.JSONPatchType, patch, metav1.PatchOptions{})
	return err
}

// write creates an object with a field that a schema may lack. If it is accepted, write reads
// it again and checks the field. It then deletes the object.
func (k *keeping) write(ctx context.Context, name string) (accepted bool, err error) {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "", "kind": "Job", "metadata": map[string]any{"name": name}, "spec": map[string]any{"color": int64(1), "size": int64(7)}}}
	object.SetAPIVersion(k.crd[len("jobs."):] + "/v1")
	made, err := k.objects.Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	has := func(u *unstructured.Unstructured) bool {
		_, found, err := unstructured.NestedInt64(u.Object, "spec", "size")
		return found && err == nil
	}
	accepted = has(made)
	found, err := k.objects.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return accepted, err
	}
	if accepted && !has(found) {
		return accepted, errLost
	}
	return accepted, k.objects.Delete(ctx, name, metav1.DeleteOptions{})
}

var errLost = errors.New("it was accepted with the field, which is lost")

// TestWhatIsAcceptedIsKept narrows and widens a negotiated type while objects with the field
// are created and deleted. The type can be narrowed only while there are none. Accepted objects
// keep the field.
func TestWhatIsAcceptedIsKept(t *testing.T) {
	t.Parallel()
	const rounds, writers = 6, 2
	k := newKeeping(t, "kept.example.org")
	ctx, stop := context.WithCancel(t.Context())
	var accepted, refused atomic.Int64
	var working sync.WaitGroup
	for writer := range writers {
		working.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				name := fmt.Sprintf("w%d-%d", writer, i)
				had, err := k.write(ctx, name)
				switch {
				case ctx.Err() != nil:
				case err == nil && had:
					accepted.Add(1)
				case err == nil:
				case apierrors.IsTooManyRequests(err):
					refused.Add(1)
				default:
					t.Errorf("object %s: %v", name, err)
				}
			}
		})
	}
	conflicts := 0
	for range rounds {
		eventually(t, "the type is narrowed", func(ctx context.Context) (bool, error) {
			err := k.serve(ctx, properties("color"))
			if apierrors.IsConflict(err) {
				conflicts++
				return false, nil
			}
			return true, err
		})
		if err := k.serve(t.Context(), properties("color", "size")); err != nil {
			t.Errorf("widening the type: %v", err)
		}
		was := accepted.Load()
		eventually(t, "objects with the field are accepted again", func(context.Context) (bool, error) { return accepted.Load() > was, nil })
	}
	stop()
	working.Wait()
	t.Logf("%d accepted, %d refused, %d attempts to narrow refused", accepted.Load(), refused.Load(), conflicts)
}

// TestOthersAreNotGuarded: a CRD that is not negotiated behaves as in Kubernetes.
func TestOthersAreNotGuarded(t *testing.T) {
	t.Parallel()
	k := newKeeping(t, "free.example.org")
	crds := k.crds.ApiextensionsV1().CustomResourceDefinitions()
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "free.example.org/v1", "kind": "Job",
		"metadata": map[string]any{"name": "one"}, "spec": map[string]any{"size": int64(7)}}}
	if _, err := k.objects.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := k.serve(t.Context(), properties("color")); !apierrors.IsConflict(err) {
		t.Errorf("narrowing a negotiated type = %v, want a conflict", err)
	}
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, apiresourcev1alpha1.NegotiatedAnnotation)
	if _, err := crds.Patch(t.Context(), k.crd, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := k.serve(t.Context(), properties("color")); err != nil {
		t.Errorf("narrowing a type that is not negotiated: %v", err)
	}
	if err := crds.Delete(t.Context(), k.crd, metav1.DeleteOptions{}); err != nil {
		t.Errorf("deleting it: %v", err)
	}
	eventually(t, "the CRD is gone", func(ctx context.Context) (bool, error) {
		_, err := crds.Get(ctx, k.crd, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}
