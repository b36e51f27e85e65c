package restv0

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/registry/rest"

	v0 "rik.dev/rik/api/rik/v0"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/registry/instance"
	"rik.dev/rik/internal/apiserver/registry/store"
)

const (
	// maxReplicas bounds one request. Such a request ends within the server's time limit, and
	// larger numbers are most likely mistakes.
	maxReplicas = 10000
	// writesAtOnce is how many instances are created concurrently. The datastore combines
	// concurrent writes into one write to the disk.
	writesAtOnce = 64
	// createTimeout bounds the creation. undoTimeout bounds the deletion of instances that a
	// failed request created.
	createTimeout = 2 * time.Minute
	undoTimeout   = 30 * time.Second
)

// named is an instance of a workload with the name from its creation. The published form has no
// field for that name.
type named struct {
	v0.Instance
	Name string `json:"name"`
}

func (c *call) listInstances() (answer, error) {
	items, err := list(c, c.Stores.Instances.Instance, instances, func(l *rik.InstanceList) []rik.Instance { return l.Items })
	if err != nil {
		return answer{}, err
	}
	out := make([]row[v0.Instance], len(items))
	templates := templates{}
	for i := range items {
		value, err := c.render(&items[i], templates)
		if err != nil {
			return answer{}, err
		}
		out[i] = row[v0.Instance]{value.ID, items[i].Name, value}
	}
	return answer{http.StatusOK, out}, nil
}

// listInstancesOf lists the instances of the workload whose ID is at the end of the path.
func (c *call) listInstancesOf() (answer, error) {
	if c.id == "" {
		return answer{}, invalidField("", "No workload id provided")
	}
	w, err := c.findWorkload(c.id)
	if err != nil {
		return answer{}, err
	}
	if err := c.must("list", instances, w.Namespace, "", "instances of workload "+c.id); err != nil {
		return answer{}, err
	}
	found, err := store.Find[*rik.Instance](c.in("list", instances, w.Namespace, ""), c.Stores.Instances.Instance.Store,
		instance.ByWorkload, string(w.UID), store.Latest)
	if err != nil {
		return answer{}, err
	}
	if c.limit > 0 && int64(len(found)) > c.limit {
		found = found[:c.limit]
	}
	out := make([]named, len(found))
	templates := templates{}
	for i := range found {
		value, err := c.render(found[i], templates)
		if err != nil {
			return answer{}, err
		}
		out[i] = named{value, found[i].Name}
	}
	return answer{http.StatusOK, map[string][]named{"instances": out}}, nil
}

// templates caches the templates that were read for one response, by namespace and revision.
type templates map[string]*rikv1alpha1.InstanceTemplate

// render returns the published form of an instance.
func (c *call) render(i *rik.Instance, known templates) (v0.Instance, error) {
	out := &rikv1alpha1.Instance{}
	if err := v1alpha1.Convert_rik_Instance_To_v1alpha1_Instance(i, out, nil); err != nil {
		return v0.Instance{}, err
	}
	key := i.Namespace + "/" + i.Spec.Revision
	template := known[key]
	if template == nil {
		revision, err := c.Stores.Revisions.Get(c.in("get", instances, i.Namespace, i.Name), i.Spec.Revision)
		switch {
		case err == nil:
			template = &revision.Template
		case apierrors.IsNotFound(err):
			// The revision was deleted together with the instance, between the two reads.
			template = &rikv1alpha1.InstanceTemplate{}
		default:
			return v0.Instance{}, err
		}
		known[key] = template
	}
	return v0.FromInstance(out, template, instance.WorkloadUID(i), string(i.UID)), nil
}

// order is the body of instances.create.
type order struct {
	WorkloadID *string `json:"workload_id"`
	Name       string  `json:"name"`
	Replicas   *int64  `json:"replicas"`
}

func (o *order) validate() error {
	switch {
	case o.WorkloadID == nil || *o.WorkloadID == "":
		return invalidField("workload_id", "is required")
	case *o.Replicas < 0 || *o.Replicas > maxReplicas:
		return invalidField("replicas", fmt.Sprintf("must be between 0 and %d, not %d", maxReplicas, *o.Replicas))
	case o.Name != "" && *o.Replicas > 1:
		return invalidField("name", "Cannot use name with multiple replicas")
	}
	return nil
}

// createInstances creates all requested instances of a workload, or none of them.
func (c *call) createInstances() (answer, error) {
	body := order{Replicas: pointer[int64](1)}
	if err := c.decode(&body); err != nil {
		return answer{}, err
	}
	if body.Replicas == nil { // explicit null
		body.Replicas = pointer[int64](1)
	}
	if err := body.validate(); err != nil {
		return answer{}, err
	}
	w, err := c.findWorkload(*body.WorkloadID)
	if err != nil {
		return answer{}, err
	}
	if err := c.must("create", instances, w.Namespace, "", "instances of workload "+*body.WorkloadID); err != nil {
		return answer{}, err
	}
	audit.AddAuditAnnotation(c.Context(), auditAnnotation, fmt.Sprintf("%d instances of %s/%s", *body.Replicas, w.Namespace, w.Name))
	names, err := c.start(w, body.Name, int(*body.Replicas))
	if err != nil {
		return answer{}, err
	}
	return answer{http.StatusCreated, names}, nil
}

// start creates n instances and returns their names in order. If one cannot be created, it
// deletes the others.
func (c *call) start(w *rik.Workload, name string, n int) ([]string, error) {
	// Do not cancel a write, because a canceled write may have happened or not. If the client
	// disconnects or a write fails, only further writes are skipped.
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(c.Context()), createTimeout, errors.New("creating instances took too long"))
	defer cancel()
	made := make([]*rik.Instance, n)
	group, failed := errgroup.WithContext(c.Context())
	group.SetLimit(writesAtOnce)
	for i := range made {
		group.Go(func() error {
			if err := failed.Err(); err != nil {
				return err
			}
			var err error
			made[i], err = create(ctx, c, c.Stores.Instances.Instance, instances, newInstance(w, name))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, c.undo(made, translateCreate(err, name))
	}
	names := make([]string, n)
	for i := range made {
		names[i] = made[i].Name
	}
	slices.Sort(names)
	return names, nil
}

// newInstance returns an instance to which its store will assign the workload's newest
// revision. Without a name it gets a generated one: <workload>-<suffix>.
func newInstance(w *rik.Workload, name string) *rik.Instance {
	i := &rik.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name}, Spec: rik.InstanceSpec{Workload: w.Name}}
	if name == "" {
		i.GenerateName = w.Name + "-"
	}
	return i
}

func translateCreate(err error, name string) error {
	if apierrors.IsAlreadyExists(err) && name != "" {
		return conflict(fmt.Sprintf("Name already used by instance %q", name))
	}
	return translated(err, "metadata.name", "name", "spec.workload", "workload_id")
}

// undo deletes the instances that a failed request created. It continues after the client has
// disconnected, and adds the instances that remain to the error.
func (c *call) undo(made []*rik.Instance, cause error) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(c.Context()), undoTimeout, errors.New("deleting the created instances took too long"))
	defer cancel()
	left := make([]string, len(made))
	var group errgroup.Group
	group.SetLimit(writesAtOnce)
	for n, i := range made {
		if i == nil {
			continue
		}
		group.Go(func() error {
			options := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &i.UID}}
			_, _, err := c.Stores.Instances.Instance.Delete(about(ctx, "delete", instances, i.Namespace, i.Name), i.Name, rest.ValidateAllObjectFunc, options)
			if err != nil && !apierrors.IsNotFound(err) {
				left[n] = i.Name
			}
			return nil
		})
	}
	// left contains every failure.
	_ = group.Wait()
	left = slices.DeleteFunc(left, func(name string) bool { return name == "" })
	if len(left) == 0 {
		return cause
	}
	p := *problemOf(cause)
	p.Message += fmt.Sprintf("; %d instances were created before the error and could not be deleted", len(left))
	p.Instances = left
	return &p
}

// deleteInstance marks an instance for deletion. Its node does the rest.
func (c *call) deleteInstance() (answer, error) {
	id, err := c.readID()
	if err != nil {
		return answer{}, err
	}
	i, err := c.findInstance(id)
	if err == nil {
		err = c.remove(c.Stores.Instances.Instance, instances, i, id)
	}
	if errors.Is(err, errGone) {
		err = notFound(fmt.Sprintf("Instance id %s not found", id))
	}
	return answer{code: http.StatusNoContent}, err
}

// findInstance finds an instance by UID, or otherwise by name, because instances.create returns
// names. A UID that does not exist is never used as a name. Otherwise a client that repeats a
// deletion could delete an instance that was given that UID as its name.
func (c *call) findInstance(id string) (*rik.Instance, error) {
	found, err := find[*rik.Instance](c.Context(), c.Stores.Instances.Instance.Store, id)
	if err == nil && c.elsewhere(found.Namespace) {
		return nil, errGone
	}
	if !errors.Is(err, errGone) || looksLikeUID(id) {
		return found, err
	}
	if err := c.must("delete", instances, c.orDefault(), id, "instance "+id); err != nil {
		return nil, err
	}
	obj, err := c.Stores.Instances.Instance.Get(c.in("get", instances, c.orDefault(), id), id, &metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsBadRequest(err) {
		return nil, errGone
	}
	if err != nil {
		return nil, err
	}
	byName, ok := obj.(*rik.Instance)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("programmer error: %T is not an instance", obj))
	}
	return byName, nil
}

// looksLikeUID checks only for the form 8-4-4-4-12 characters.
func looksLikeUID(id string) bool {
	parts := strings.Split(id, "-")
	if len(parts) != 5 {
		return false
	}
	for i, length := range []int{8, 4, 4, 4, 12} {
		if len(parts[i]) != length {
			return false
		}
	}
	return true
}
