package cluster

import (
	"context"
	"fmt"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"rik.dev/rik/internal/multicluster/terminal"
)

// clearStatus removes the status that a cluster has reported from an object that is sent only to
// Clusters that do not exist. That status may be out of date, and no syncer would ever change it.
// An object that was handled before has the same version, and is not read again.
func (c *Controller) clearStatus(ctx context.Context, gvr schema.GroupVersionResource, object *metav1.PartialObjectMetadata) error {
	if gvr.GroupResource() == corev1.Resource("persistentvolumeclaims") {
		return nil // its status records where data is, which other clusters need
	}
	if c.cleared[object.UID] == object.ResourceVersion {
		return nil
	}
	objects := c.dynamic.Resource(gvr).Namespace(object.Namespace)
	present, err := objects.Get(ctx, object.Name, metav1.GetOptions{})
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	if present.GetUID() != object.UID || present.GetResourceVersion() != object.ResourceVersion {
		return nil // the next sweep handles the changed object
	}
	status, _ := present.Object["status"].(map[string]any)
	version := object.ResourceVersion
	if _, finished := terminal.Of(present); len(status) > 0 && !finished {
		if version, err = c.writeUnknown(ctx, gvr, present, status); err != nil {
			return err
		}
	}
	if version != "" {
		c.cleared[object.UID] = version
	}
	return nil
}

// writeUnknown writes the status of an object whose state is unknown, and returns the version of
// the object. The version is empty if the object has changed in the meantime.
func (c *Controller) writeUnknown(ctx context.Context, gvr schema.GroupVersionResource, present *unstructured.Unstructured, status map[string]any) (string, error) {
	objects := c.dynamic.Resource(gvr).Namespace(present.GetNamespace())
	// Some schemas require more fields than unknown keeps, and some fewer.
	for _, next := range []map[string]any{unknown(status, c.now().UTC().Format(time.RFC3339)), {}} {
		if reflect.DeepEqual(next, status) {
			return present.GetResourceVersion(), nil
		}
		changed := present.DeepCopy()
		changed.Object["status"] = next
		written, err := objects.UpdateStatus(ctx, changed, metav1.UpdateOptions{FieldManager: fieldManager})
		switch {
		case err == nil:
			return written.GetResourceVersion(), nil
		case apierrors.IsConflict(err):
			return "", nil
		case apierrors.IsNotFound(err): // or the type has no writable status
			return present.GetResourceVersion(), nil
		case !apierrors.IsInvalid(err):
			return "", fmt.Errorf("taking the status from %s/%s: %w", present.GetNamespace(), present.GetName(), err)
		}
	}
	c.config.Logger.Warn("the status of an object whose Cluster does not exist stays, because the schema requires its fields",
		"type", gvr.GroupResource().String(), "namespace", present.GetNamespace(), "name", present.GetName())
	return present.GetResourceVersion(), nil
}

// unknown returns the rest of a status that is out of date: numbers are 0, conditions are
// Unknown, and all other fields are left out.
func unknown(status map[string]any, now string) map[string]any {
	out := map[string]any{}
	for name, value := range status {
		switch value := value.(type) {
		case int64, float64:
			out[name] = int64(0)
		case []any:
			if conditions := unknownConditions(value, now); name == "conditions" && len(conditions) > 0 {
				out[name] = conditions
			}
		}
	}
	return out
}

func unknownConditions(conditions []any, now string) []any {
	var out []any
	for _, entry := range conditions {
		c, ok := entry.(map[string]any)
		if !ok || c["type"] == nil {
			continue
		}
		next := map[string]any{"type": c["type"], "status": string(metav1.ConditionUnknown), "reason": noSuchCluster, "message": "The Cluster to which the object is sent does not exist."}
		if c["status"] == next["status"] && c["reason"] == next["reason"] {
			out = append(out, c)
			continue
		}
		for _, field := range []string{"lastTransitionTime", "lastUpdateTime", "lastProbeTime"} {
			if c[field] != nil {
				next[field] = now
			}
		}
		out = append(out, next)
	}
	return out
}
