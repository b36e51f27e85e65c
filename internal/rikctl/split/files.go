package split

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/manifest"
)

// fileObject is an object from a file, as it would be stored.
type fileObject struct {
	*unstructured.Unstructured
	source string
}

// trial applies the objects of files in a dry run. The server merges them with the stored
// objects, sets defaults and validates them, and stores nothing.
type trial struct {
	c client.Client
	// namespace is for objects without one. With strict, objects of other namespaces are an
	// error, because the user named the namespace.
	namespace string
	strict    bool
	warn      io.Writer
	// made are the namespaces that the files create.
	made []string
}

// read parses the objects of files.
func (t *trial) read(documents []manifest.Document) ([]fileObject, error) {
	var out []fileObject
	for _, d := range documents {
		object := &unstructured.Unstructured{}
		data, err := yaml.YAMLToJSONStrict(d.Data)
		if err == nil {
			_, err = manifest.KindOf(data)
		}
		if err == nil {
			err = object.UnmarshalJSON(data)
		}
		if err != nil {
			return nil, clierror.InvalidError{Source: d.Source, Err: err}
		}
		err = object.EachListItem(func(o runtime.Object) error {
			out = append(out, fileObject{o.(*unstructured.Unstructured), d.Source})
			return nil
		})
		if !object.IsList() {
			out, err = append(out, fileObject{object, d.Source}), nil
		}
		if err != nil {
			return nil, clierror.InvalidError{Source: d.Source, Err: err}
		}
	}
	for i := range out {
		if err := t.locate(out[i]); err != nil {
			return nil, err
		}
		if out[i].GroupVersionKind().GroupKind() == namespaceKind {
			t.made = append(t.made, out[i].GetName())
		}
	}
	return out, nil
}

// locate sets the namespace of an object.
func (t *trial) locate(o fileObject) error {
	mapping, err := t.c.RESTMapper().RESTMapping(o.GroupVersionKind().GroupKind(), o.GroupVersionKind().Version)
	if err != nil {
		return fmt.Errorf("%s: %w", o.source, err)
	}
	if o.GetName() == "" {
		return clierror.InvalidError{Source: o.source, Err: errors.New("metadata.name: required")}
	}
	switch namespace := o.GetNamespace(); {
	case mapping.Scope.Name() != meta.RESTScopeNameNamespace:
		o.SetNamespace("")
	case namespace == "":
		o.SetNamespace(t.namespace)
	case t.strict && namespace != t.namespace:
		return clierror.InvalidError{Source: o.source, Err: fmt.Errorf("metadata.namespace is %s, but -n is %s", namespace, t.namespace)}
	}
	return nil
}

// apply returns the object as it would be stored. If the user may not write, the result is an
// estimate: the stored object, overlaid with the fields of the file.
func (t *trial) apply(ctx context.Context, o fileObject) (*unstructured.Unstructured, error) {
	out, err := t.dryRun(ctx, o, false)
	switch {
	case apierrors.IsConflict(err):
		_, _ = fmt.Fprintf(t.warn, "warning: %s: \"rikctl apply\" needs --force-conflicts: %v\n", o.source, err)
		out, err = t.dryRun(ctx, o, true)
	case apierrors.IsForbidden(err):
		_, _ = fmt.Fprintf(t.warn, "warning: %s: you have no permission to apply it, so the plan uses an estimate: %v\n", o.source, err)
		return t.overlaid(ctx, o)
	case apierrors.IsNotFound(err) && slices.Contains(t.made, o.GetNamespace()):
		return t.overlaid(ctx, o)
	}
	// For a value of the wrong type, the server returns an error without a reason.
	//prose:foreign
	if err != nil && strings.Contains(err.Error(), "failed to create typed patch object") {
		return nil, clierror.InvalidError{Source: o.source, Err: errors.New(err.Error())}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.source, err)
	}
	out.SetManagedFields(nil)
	return out, nil
}

// dryRun returns the object that the server would store.
func (t *trial) dryRun(ctx context.Context, o fileObject, force bool) (*unstructured.Unstructured, error) {
	object := o.DeepCopy()
	unstructured.RemoveNestedField(object.Object, "status")
	data, err := object.MarshalJSON()
	if err != nil {
		return nil, err
	}
	options := []client.PatchOption{client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict), client.FieldOwner(cmdline.Program)}
	if force {
		options = append(options, client.ForceOwnership)
	}
	return object, t.c.Patch(ctx, object, client.RawPatch(types.ApplyPatchType, data), options...)
}

// overlaid returns the stored object, overlaid with the fields of the file.
func (t *trial) overlaid(ctx context.Context, o fileObject) (*unstructured.Unstructured, error) {
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(o.GroupVersionKind())
	err := t.c.Get(ctx, client.ObjectKeyFromObject(o), live)
	if apierrors.IsNotFound(err) {
		return o.DeepCopy(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.source, err)
	}
	overlay(live.Object, o.DeepCopy().Object)
	live.SetManagedFields(nil)
	return live, nil
}

// overlay copies the fields of over into under. Lists are replaced.
func overlay(under, over map[string]any) {
	for key, value := range over {
		inner, isMap := value.(map[string]any)
		below, wasMap := under[key].(map[string]any)
		if isMap && wasMap {
			overlay(below, inner)
			continue
		}
		under[key] = value
	}
}

// convert converts an object to its Go type.
func convert[T any](o *unstructured.Unstructured) (*T, error) {
	out := new(T)
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, out)
	return out, err
}

// expected returns a Cluster as it will be when it accepts objects: ready, with the types of the
// other clusters, and with a fence if another cluster has one. A Cluster that is registered
// already is returned unchanged.
func expected(c *workloadv1alpha1.Cluster, registered []*workloadv1alpha1.Cluster) *workloadv1alpha1.Cluster {
	if slices.ContainsFunc(registered, func(other *workloadv1alpha1.Cluster) bool { return other.Name == c.Name }) {
		return c
	}
	c = c.DeepCopy()
	meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{
		Type: workloadv1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: workloadv1alpha1.ReasonClusterReady,
	})
	for _, other := range registered {
		c.Status.SyncedResources = append(c.Status.SyncedResources, other.Status.SyncedResources...)
		if fencing := meta.FindStatusCondition(other.Status.Conditions, workloadv1alpha1.ConditionFencing); fencing != nil && fencing.Status == metav1.ConditionTrue {
			meta.SetStatusCondition(&c.Status.Conditions, *fencing)
		}
	}
	slices.Sort(c.Status.SyncedResources)
	c.Status.SyncedResources = slices.Compact(c.Status.SyncedResources)
	return c
}

// namespacesOf returns the namespaces of objects, sorted and without duplicates.
func namespacesOf(objects []fileObject) []string {
	var out []string
	for _, o := range objects {
		if o.GetNamespace() != "" {
			out = append(out, o.GetNamespace())
		}
	}
	slices.SortFunc(out, strings.Compare)
	return slices.Compact(out)
}
