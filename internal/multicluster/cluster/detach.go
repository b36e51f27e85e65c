package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/bounded"
	"rik.dev/rik/internal/multicluster/kubeconfig"
)

const (
	// removalTimeout is how long the removal of the agent may take. A cluster that is gone must
	// not block its own detaching.
	removalTimeout = 20 * time.Second
	// objectsPage is the number of objects in one page of a list.
	objectsPage = 500
)

// detach unregisters a Cluster that is being deleted. It stops the syncer, and removes the agent
// if the cluster can be reached. It deletes the imports, and removes the syncer's finalizers
// upstream. Objects in the physical cluster stay as they are.
func (c *Controller) detach(ctx context.Context, cluster *workloadv1alpha1.Cluster) error {
	m := c.memberOf(cluster.Name)
	c.stop(cluster.Name)
	if !controllerutil.ContainsFinalizer(cluster, workloadv1alpha1.ClusterFinalizer) {
		return nil
	}
	c.removeAgent(ctx, cluster, m)
	if err := c.deleteImports(ctx, cluster.Name); err != nil {
		return err
	}
	if err := c.release(ctx, cluster.Name); err != nil {
		return err
	}
	freed := cluster.DeepCopy()
	controllerutil.RemoveFinalizer(freed, workloadv1alpha1.ClusterFinalizer)
	patch := client.MergeFromWithOptions(cluster, client.MergeFromWithOptimisticLock{})
	if err := client.IgnoreNotFound(c.client.Patch(ctx, freed, patch, client.FieldOwner(fieldManager))); err != nil {
		return fmt.Errorf("unregistering cluster %s: %w", cluster.Name, err)
	}
	c.config.Logger.Info("a cluster was detached", "cluster", cluster.Name)
	return nil
}

// removeAgent tries to remove the agent. An agent that stays has no Cluster and copies nothing.
func (c *Controller) removeAgent(ctx context.Context, cluster *workloadv1alpha1.Cluster, m *member) {
	if m == nil {
		m = c.unconnected(ctx, cluster)
	}
	if m == nil || m.observe().probe.trouble != nil {
		c.config.Logger.Warn("the syncer's agent was not removed, because the cluster does not answer", "cluster", cluster.Name)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, removalTimeout)
	defer cancel()
	defer m.disconnect()
	if err := m.agent.remove(ctx); err != nil {
		m.logger.Warn("the syncer's agent stays in the cluster", "err", m.errorText(err))
	}
}

// unconnected returns a member that does not run, for a Cluster that was deleted before this
// controller started. It is nil if there is no usable kubeconfig.
func (c *Controller) unconnected(ctx context.Context, cluster *workloadv1alpha1.Cluster) *member {
	data, wrong, err := c.kubeconfig(ctx, cluster)
	if err != nil || wrong != nil {
		return nil
	}
	downstream, err := kubeconfig.Parse(data)
	if err != nil {
		return nil
	}
	m, err := c.newMember(cluster, identityOf(cluster, c.config.modeOf(cluster), data), cluster.Status.UID, downstream)
	if err != nil {
		return nil
	}
	return m
}

func (c *Controller) deleteImports(ctx context.Context, name string) error {
	imports, err := c.importsOf(ctx, name)
	if err != nil {
		return err
	}
	var problems []error
	for _, i := range imports {
		err := c.client.Delete(ctx, i, client.Preconditions{UID: &i.UID})
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			problems = append(problems, fmt.Errorf("deleting the import %s: %w", i.Name, err))
		}
	}
	return errors.Join(problems...)
}

// release removes a cluster's finalizer and annotations from every object upstream.
func (c *Controller) release(ctx context.Context, name string) error {
	return c.releaseWhere(ctx, look{lost: func(s orphan, _ bool) (bool, error) { return s.cluster == name, nil }})
}

// releaseCheck decides whether a finalizer of a cluster's syncer must be removed from an object. sent
// is true if the labels of the object send it to that cluster.
type releaseCheck func(held orphan, sent bool) (lost bool, err error)

// look is what a walk through the objects searches for.
type look struct {
	lost releaseCheck
	// absent reports whether a Cluster does not exist. If it is nil, that is not checked.
	absent func(name string) (bool, error)
	// seen receives the objects that are sent only to Clusters that do not exist.
	seen map[types.UID]bool
}

// releaseWhere walks through every object of every type that can be copied. If a type cannot be
// read, it returns an error, but still reads all other types.
func (c *Controller) releaseWhere(ctx context.Context, l look) error {
	kinds, err := c.carriable()
	problems := []error{err}
	for _, gvr := range kinds {
		if err := c.releaseType(ctx, gvr, l); err != nil {
			problems = append(problems, fmt.Errorf("releasing %s: %w", gvr.GroupResource(), err))
		}
	}
	return errors.Join(problems...)
}

// carriable returns the upstream types whose objects can have a syncer's finalizer. If an API
// group cannot be read, it returns an error and the types of the other groups. Objects of that
// group may be missed.
func (c *Controller) carriable() ([]schema.GroupVersionResource, error) {
	var problems []error
	lists, err := discovery.ServerPreferredResources(c.types)
	if err != nil {
		problems = append(problems, fmt.Errorf("asking the kcp for its types: %w", err))
	}
	versions, err := c.versions()
	if err != nil {
		return nil, err
	}
	var kinds []schema.GroupVersionResource
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "patch"}}, lists) {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("reading the types of the kcp: %w", err)
		}
		for i := range list.APIResources {
			gvr := gv.WithResource(list.APIResources[i].Name)
			if neverSynced(gvr.GroupResource()) != "" || slices.Contains(ownGroups, gv.Group) {
				continue
			}
			// A write through a version other than the storage version may lose fields.
			others := versions[gvr.GroupResource()]
			if len(others) == 0 {
				continue // its group could be read the first time, but not the second time
			}
			if len(others) > 1 {
				stored, err := bounded.StoredIn(c.types, gvr, others)
				if err != nil {
					problems = append(problems, err)
					continue
				}
				gvr.Version = cmp.Or(stored, gvr.Version)
			}
			kinds = append(kinds, gvr)
		}
	}
	return kinds, errors.Join(problems...)
}

// versions returns the versions in which the kcp serves each resource. API groups that cannot be
// read are missing. The listing of types reports those.
func (c *Controller) versions() (map[schema.GroupResource][]string, error) {
	_, lists, err := c.types.ServerGroupsAndResources()
	if err != nil && len(lists) == 0 {
		return nil, fmt.Errorf("asking the kcp for its types: %w", err)
	}
	versions := map[schema.GroupResource][]string{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, fmt.Errorf("reading the types of the kcp: %w", err)
		}
		for i := range list.APIResources {
			resource := gv.WithResource(list.APIResources[i].Name).GroupResource()
			versions[resource] = append(versions[resource], gv.Version)
		}
	}
	return versions, nil
}

// ownGroups are the API groups of the kcp's own objects, which are not copied.
var ownGroups = []string{workloadv1alpha1.GroupName, apiresourcev1alpha1.GroupName}

func (c *Controller) releaseType(ctx context.Context, gvr schema.GroupVersionResource, l look) error {
	options := metav1.ListOptions{Limit: objectsPage}
	for {
		page, err := c.objects.Resource(gvr).List(ctx, options)
		if err != nil {
			// the type was removed in the meantime, and its objects with it
			return client.IgnoreNotFound(err)
		}
		for i := range page.Items {
			if err := c.releaseObject(ctx, gvr, &page.Items[i], l); err != nil {
				return err
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return nil
		}
	}
}

func (c *Controller) releaseObject(ctx context.Context, gvr schema.GroupVersionResource, object *metav1.PartialObjectMetadata, l look) error {
	var lost []string
	for _, name := range holders(object.Finalizers) {
		held := orphan{cluster: name, resource: gvr, namespace: object.Namespace, name: object.Name, uid: object.UID}
		is, err := l.lost(held, isSent(object, name))
		if err != nil {
			return err
		}
		if is {
			lost = append(lost, name)
		}
	}
	notes, nowhere, err := l.notes(object)
	if err != nil {
		return err
	}
	if len(lost) > 0 || len(notes) > 0 {
		// This changes the version. The next sweep handles the status.
		return release(ctx, c.objects, gvr, object, lost, notes)
	}
	if nowhere {
		l.seen[object.UID] = true
		return c.clearStatus(ctx, gvr, object)
	}
	return nil
}

// noSuchCluster is the reason of the problem of an object that is sent to a Cluster that does not
// exist.
const noSuchCluster = "NoSuchCluster"

// notes returns the annotations to set on an object, or to remove (nil), because it is sent to
// Clusters that do not exist. Such Clusters have no syncer that would report this. nowhere is
// true if the object is sent to no other Clusters.
func (l look) notes(object *metav1.PartialObjectMetadata) (notes map[string]any, nowhere bool, err error) {
	notes = map[string]any{}
	if l.absent == nil || object.DeletionTimestamp != nil {
		return notes, false, nil
	}
	targets, existing := workloadv1alpha1.Targets(object.Labels), 0
	absent := map[string]bool{}
	for _, name := range targets {
		is, err := l.absent(name)
		if err != nil {
			return nil, false, err
		}
		if !is {
			existing++
		}
		key := workloadv1alpha1.ProblemAnnotationPrefix + name
		text := fmt.Sprintf("%s: the Cluster %s does not exist; register it, or change the label that names it. The status of the object is out of date", noSuchCluster, name)
		if absent[key] = is; is && object.Annotations[key] != text {
			notes[key] = text
		}
	}
	for key, text := range object.Annotations {
		if strings.HasPrefix(key, workloadv1alpha1.ProblemAnnotationPrefix) && strings.HasPrefix(text, noSuchCluster+":") && !absent[key] {
			notes[key] = nil
		}
	}
	return notes, len(targets) > 0 && existing == 0, nil
}

// release removes the finalizers and annotations of some clusters' syncers from an object, and
// changes other annotations. It does so only if the object has not changed since it was read.
func release(ctx context.Context, upstream metadata.Interface, gvr schema.GroupVersionResource, object *metav1.PartialObjectMetadata, clusters []string, others map[string]any) error {
	body, err := json.Marshal(releasing(object, clusters, others))
	if err != nil {
		return err
	}
	_, err = upstream.Resource(gvr).Namespace(object.Namespace).Patch(ctx, object.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: fieldManager})
	return client.IgnoreNotFound(err)
}

// releasing returns the merge patch for release. The patch contains the resource version of the
// object, because it replaces the whole list of finalizers.
func releasing(object *metav1.PartialObjectMetadata, clusters []string, others map[string]any) map[string]any {
	finalizers := slices.Clone(object.Finalizers)
	notes := map[string]any{}
	for _, name := range clusters {
		finalizers = slices.DeleteFunc(finalizers, func(f string) bool { return f == workloadv1alpha1.FinalizerPrefix+name })
		for _, prefix := range []string{workloadv1alpha1.StatusAnnotationPrefix, workloadv1alpha1.ProblemAnnotationPrefix} {
			if _, ok := object.Annotations[prefix+name]; ok {
				notes[prefix+name] = nil
			}
		}
	}
	maps.Copy(notes, others)
	metadata := map[string]any{"resourceVersion": object.ResourceVersion, "finalizers": finalizers}
	if len(notes) > 0 {
		metadata["annotations"] = notes
	}
	return map[string]any{"metadata": metadata}
}
