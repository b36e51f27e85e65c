package restv0

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/audit"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	v0 "rik.dev/rik/api/rik/v0"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/v1alpha1"
)

type genericStore = genericregistry.Store

// row is the form in which the published database stored all objects: an ID, a name and a
// value.
type row[T any] struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	Value T      `json:"value"`
}

// identity is the body of every delete request.
type identity struct {
	ID *string `json:"id"`
}

// readID reads the body of a delete request.
func (c *call) readID() (string, error) {
	var body identity
	if err := c.decode(&body); err != nil {
		return "", err
	}
	if body.ID == nil || *body.ID == "" {
		return "", invalidField("id", "is required")
	}
	return *body.ID, nil
}

// elsewhere reports whether an object is outside the namespace in the query.
func (c *call) elsewhere(namespace string) bool { return c.namespace != "" && c.namespace != namespace }

// deleted reports whether a workload waits for the controller to end its instances. Published
// clients do not have such a state, so the workload counts as gone.
func deleted(w rik.Workload) bool { return w.DeletionTimestamp != nil }

// findWorkload reads the workload that it found again without the cache. The cache may not yet
// show that the workload was deleted, even by this client.
func (c *call) findWorkload(id string) (*rik.Workload, error) {
	gone := notFound(fmt.Sprintf("Workload id %s not found", id))
	found, err := find[*rik.Workload](c.Context(), c.Stores.Workloads.Workload.Store, id)
	switch {
	case errors.Is(err, errGone) || err == nil && (c.elsewhere(found.Namespace) || deleted(*found)):
		return nil, gone
	case err != nil:
		return nil, err
	}
	object, err := c.Stores.Workloads.Workload.Get(c.in("get", workloads, found.Namespace, found.Name), found.Name, &metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, gone
	case err != nil:
		return nil, err
	}
	w := object.(*rik.Workload)
	if w.UID != found.UID || deleted(*w) {
		return nil, gone
	}
	return w, nil
}

func (c *call) listWorkloads() (answer, error) {
	items, err := list(c, c.Stores.Workloads.Workload, workloads, func(l *rik.WorkloadList) []rik.Workload {
		return slices.DeleteFunc(l.Items, deleted)
	})
	if err != nil {
		return answer{}, err
	}
	out := make([]row[v0.Definition], len(items))
	for i := range items {
		w := &rikv1alpha1.Workload{}
		if err := v1alpha1.Convert_rik_Workload_To_v1alpha1_Workload(&items[i], w, nil); err != nil {
			return answer{}, err
		}
		out[i] = row[v0.Definition]{string(w.UID), w.Name, v0.FromWorkload(w)}
	}
	return answer{http.StatusOK, out}, nil
}

// createWorkload stores a definition and starts no instances, as published.
func (c *call) createWorkload() (answer, error) {
	body, err := c.readBody()
	if err != nil {
		return answer{}, err
	}
	definition, err := v0.Decode(body)
	if err != nil {
		return answer{}, malformed(err)
	}
	namespace := c.orDefault()
	w, errs := v0.ToWorkload(definition, namespace)
	if len(errs) > 0 {
		return answer{}, invalid(errs)
	}
	if err := c.must("create", workloads, namespace, "", fmt.Sprintf("workloads in namespace %q", namespace)); err != nil {
		return answer{}, err
	}
	legacyscheme.Scheme.Default(w)
	hub := &rik.Workload{}
	if err := v1alpha1.Convert_v1alpha1_Workload_To_rik_Workload(w, hub, nil); err != nil {
		return answer{}, err
	}
	audit.AddAuditAnnotation(c.Context(), auditAnnotation, fmt.Sprintf("workloads %s/%q", namespace, w.Name))
	made, err := create(c.Context(), c, c.Stores.Workloads.Workload, workloads, hub)
	if apierrors.IsAlreadyExists(err) {
		return answer{}, conflict(fmt.Sprintf("Name already used by workload %q in namespace %q", w.Name, namespace))
	}
	if err != nil {
		return answer{}, translated(err, definitionPaths...)
	}
	return answer{http.StatusOK, identity{ID: pointer(string(made.UID))}}, nil
}

// definitionPaths maps the paths of a workload's fields to the fields of a definition. The port
// of a Function has the same name in both.
var definitionPaths = []string{"exposure.targetPort", "exposure.targetPort", "metadata.name", "name", "spec.replicas", "replicas", "spec.kind", "kind", ".targetPort", ".target_port"}

// deleteWorkload deletes the workload. The controller then ends its instances.
func (c *call) deleteWorkload() (answer, error) {
	id, err := c.readID()
	if err != nil {
		return answer{}, err
	}
	w, err := c.findWorkload(id)
	if err == nil {
		err = c.remove(c.Stores.Workloads.Workload, workloads, w, id)
	}
	if errors.Is(err, errGone) {
		err = notFound(fmt.Sprintf("Workload id %s not found", id))
	}
	return answer{code: http.StatusNoContent}, err
}

func pointer[T any](v T) *T { return &v }
