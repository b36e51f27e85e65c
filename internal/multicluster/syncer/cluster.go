package syncer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/pause"
)

const (
	// typesInterval is the interval at which the syncer checks whether both sides still serve the
	// types. missingInterval is the interval while a type is missing.
	typesInterval   = 30 * time.Second
	missingInterval = 2 * time.Second
)

// watchCluster updates the cached Cluster. It returns ErrClusterGone when that Cluster no longer
// exists.
func (e *engine) watchCluster(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	informer := dynamicinformer.NewFilteredDynamicInformer(e.upstream.objects, clusterType.Resource, metav1.NamespaceAll, 0, cache.Indexers{},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", e.config.Cluster).String()
		}).Informer()
	err := watch(informer, e.log, func(o *unstructured.Unstructured) {
		if lookUp(informer, "", e.config.Cluster) == nil || o.GetUID() != e.identity.ClusterUID {
			cancel(ErrClusterGone)
			return
		}
		e.clusterChanged(o)
	})
	if err != nil {
		return err
	}
	// When the Cluster is deleted, its credentials become invalid. The watch may end before it
	// has delivered the deletion.
	err = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		e.log.Debug("the watch of the Cluster was lost", "err", err)
		if apierrors.IsForbidden(err) {
			cancel(ErrClusterGone)
		}
	})
	if err != nil {
		return fmt.Errorf("watching the Cluster: %w", err)
	}
	informer.RunWithContext(ctx)
	if cause := context.Cause(ctx); errors.Is(cause, ErrClusterGone) {
		return cause
	}
	return nil
}

func (e *engine) clusterChanged(o *unstructured.Unstructured) {
	cluster, err := toCluster(o)
	if err != nil {
		e.log.Error("the Cluster cannot be read", "err", err)
		return
	}
	e.mu.Lock()
	before := e.cluster
	e.cluster = cluster
	e.mu.Unlock()
	if !slices.Equal(e.wanted(before), e.wanted(cluster)) || !slices.Equal(before.Spec.ClusterScopedResources, cluster.Spec.ClusterScopedResources) {
		e.typePokes.Wake()
	}
	// The fence waits for the first heartbeat after the kcp considers the cluster reachable
	// again.
	if isSilent(before) && !isSilent(cluster) ||
		before.Annotations[workloadv1alpha1.AllowDeletesAnnotation] != cluster.Annotations[workloadv1alpha1.AllowDeletesAnnotation] {
		e.reportPokes.Wake()
	}
}

// wanted returns the types that the Cluster asks for. A Cluster that is being deleted asks for
// types only while the splitter still empties it. After that, the cluster controller removes the
// finalizers of its objects, and the syncer must not add them again.
func (e *engine) wanted(cluster *workloadv1alpha1.Cluster) []string {
	if cluster.DeletionTimestamp != nil && !slices.Contains(cluster.Finalizers, workloadv1alpha1.SplitterFinalizer) {
		return nil
	}
	var names []string
	for _, name := range cluster.Status.SyncedResources {
		if len(e.config.Types) == 0 || slices.Contains(e.config.Types, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// runTypes starts and stops carriers for the types that the Cluster asks for and both sides
// serve.
func (e *engine) runTypes(ctx context.Context) error {
	defer e.carry(ctx, nil)
	for {
		again := typesInterval
		if err := e.lookAtTypes(ctx); err != nil {
			e.log.Warn("the list of copied types is out of date", "err", err)
			again = missingInterval
		}
		if e.isMissing() {
			again = missingInterval
		}
		if !pause.ForOr(ctx, again, e.typePokes) {
			return nil
		}
	}
}

// lookAtTypes reads the served types of both sides. If an error hides a type, its carrier
// continues. Only a successful answer ends it.
func (e *engine) lookAtTypes(ctx context.Context) error {
	cluster := e.presentCluster()
	names := e.wanted(cluster)
	if len(names) == 0 {
		e.carry(ctx, nil)
		e.mu.Lock()
		e.missing, e.looked = nil, true
		e.mu.Unlock()
		return nil
	}
	up, err := e.discover(ctx, e.upstream)
	if err != nil {
		return err
	}
	down, err := e.discover(ctx, e.downstream)
	if err != nil {
		return err
	}
	sure, types, missing := e.unaccounted(names, up, down)
	agreed, refused := agree(sure, up.lists, down.lists, cluster.Spec.ClusterScopedResources)
	unsure, err := discover(ctx, e.upstream, func(d discovery.DiscoveryInterface) (map[schema.GroupResource]error, error) {
		return written(d, agreed, up.lists), nil
	})
	if err != nil {
		return err
	}
	agreed, undecided := e.withoutUnsure(agreed, unsure)
	e.carry(ctx, append(types, agreed...))
	e.mu.Lock()
	e.missing, e.looked = slices.Concat(missing, refused, undecided), true
	e.mu.Unlock()
	e.reportPokes.Wake()
	return nil
}

// account contains the types that a side serves.
type account struct {
	side  *side
	lists []*metav1.APIResourceList
	// failed contains the groups whose types could not be read, with the errors.
	failed map[string]error
}

// unaccounted separates the types whose API group could not be read on one side, for example
// because an extension server is down. Their carriers stay as they are. It returns the names of
// the other types in sure.
func (e *engine) unaccounted(names []string, accounts ...account) (sure []string, types []Type, missing []missingType) {
	for _, name := range names {
		resource := schema.ParseGroupResource(name)
		why := ""
		for _, a := range accounts {
			if err := a.failed[resource.Group]; err != nil {
				why = fmt.Sprintf("%s did not return the types of the group %s: %s", a.side.name, resource.Group, a.side.redact(err))
			}
		}
		switch c := e.carrier(resource); {
		case why == "":
			sure = append(sure, name)
		case c != nil:
			types = append(types, c.Type)
		default:
			missing = append(missing, missingType{resource: resource, why: why, unknown: true})
		}
	}
	return sure, types, missing
}

// withoutUnsure handles the types whose storage version in the kcp is not known. Carriers that
// run stay as they are, and other types of this kind wait. All remaining types are returned as
// agreed.
func (e *engine) withoutUnsure(agreed []Type, unsure map[schema.GroupResource]error) (sure []Type, undecided []missingType) {
	for _, t := range agreed {
		resource := t.Resource.GroupResource()
		err := unsure[resource]
		switch c := e.carrier(resource); {
		case err == nil:
			sure = append(sure, t)
		case c != nil:
			sure = append(sure, c.Type)
		default:
			undecided = append(undecided, missingType{resource: resource, why: e.upstream.redact(err), unknown: true})
		}
	}
	return sure, undecided
}

// discover reads the types that a side serves. Groups that cannot be read do not cause an error.
func (e *engine) discover(ctx context.Context, s *side) (account, error) {
	a := account{side: s, failed: map[string]error{}}
	lists, err := discover(ctx, s, func(d discovery.DiscoveryInterface) ([]*metav1.APIResourceList, error) {
		_, lists, err := d.ServerGroupsAndResources()
		if failed, partial := discovery.GroupDiscoveryFailedErrorGroups(err); partial {
			err = nil
			for gv, why := range failed {
				a.failed[gv.Group] = why
			}
		}
		return lists, err
	})
	if err != nil {
		return a, fmt.Errorf("asking %s which types it serves: %w", s.name, err)
	}
	a.lists = lists
	return a, nil
}

func (e *engine) isMissing() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.missing) > 0
}

// carry starts and stops carriers so that they match the given types. Objects of types that are
// no longer copied stay as they are, on both sides.
func (e *engine) carry(ctx context.Context, types []Type) {
	wanted := map[schema.GroupResource]Type{}
	for _, t := range types {
		wanted[t.Resource.GroupResource()] = t
	}
	e.mu.Lock()
	present := maps.Clone(e.carriers)
	e.mu.Unlock()
	for resource, c := range present {
		if wanted[resource] == c.Type {
			delete(wanted, resource)
			continue
		}
		e.mu.Lock()
		delete(e.carriers, resource)
		e.mu.Unlock()
		c.end()
		e.log.Info("stopped copying a type", "type", resource.String())
	}
	for resource, t := range wanted {
		c, err := newCarrier(t, e)
		if err != nil {
			e.log.Error("a type cannot be copied", "type", resource.String(), "err", err)
			continue
		}
		e.mu.Lock()
		e.carriers[resource] = c
		e.mu.Unlock()
		c.start(ctx, e)
	}
	e.reportPokes.Wake()
}
