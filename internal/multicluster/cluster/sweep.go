package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/syncer"
)

const (
	// sweepShare limits the load of sweeps: the pause between two sweeps is at least this many
	// times as long as a sweep took. PollInterval is the shortest pause. sweepSlowest times
	// PollInterval is the longest.
	sweepShare, sweepSlowest = 50, 10
	// releaseTimeout is how long releasing one orphan may take.
	releaseTimeout = 30 * time.Second
)

// orphan is an object upstream that has the finalizer of a cluster's syncer and is not sent to the
// cluster. A syncer finds only objects that are sent to its cluster or exist in it. If a syncer
// was killed after it had deleted the object in the cluster, and before it removed the finalizer,
// no other syncer finds the object.
type orphan struct {
	cluster         string
	resource        schema.GroupVersionResource
	namespace, name string
	uid             types.UID
}

// sweep walks through every object upstream for finalizers that syncers have left. It removes
// those of Clusters that no longer exist. It gives orphans to the members, which can check their
// clusters. An orphan counts only if the last sweep found it too, because in most cases its syncer
// is still processing it.
func (c *Controller) sweep(ctx context.Context) (time.Duration, error) {
	begin := c.now()
	absent, found, seen := c.absence(ctx), map[orphan]bool{}, map[types.UID]bool{}
	err := c.releaseWhere(ctx, look{absent: absent, seen: seen, lost: func(s orphan, sent bool) (bool, error) {
		is, err := absent(s.cluster)
		if err == nil && !is && !sent {
			found[s] = true
		}
		return is, err
	}})
	// An error with one type does not stop the work on the other types.
	orphans := map[string][]orphan{}
	for s := range found {
		if c.orphans[s] {
			orphans[s.cluster] = append(orphans[s.cluster], s)
		}
	}
	c.orphans = found
	for name, list := range orphans {
		if m := c.memberOf(name); m != nil {
			m.setOrphans(list)
		}
	}
	if err != nil {
		return 0, err
	}
	maps.DeleteFunc(c.cleared, func(uid types.UID, _ string) bool { return !seen[uid] })
	pause := min(sweepShare*c.now().Sub(begin), sweepSlowest*c.config.PollInterval)
	return max(c.config.PollInterval, pause), nil
}

// absence returns a function that reports whether a Cluster does not exist. It asks once for each
// name.
func (c *Controller) absence(ctx context.Context) func(name string) (bool, error) {
	known := map[string]bool{}
	return func(name string) (bool, error) {
		if absent, ok := known[name]; ok {
			return absent, nil
		}
		// Read without the cache: a Cluster that was just registered must not count as absent.
		err := c.client.Get(ctx, client.ObjectKey{Name: name}, &workloadv1alpha1.Cluster{})
		if client.IgnoreNotFound(err) != nil {
			return false, err
		}
		known[name] = err != nil
		return known[name], nil
	}
}

// setOrphans replaces the orphans of the member.
func (m *member) setOrphans(list []orphan) {
	m.mu.Lock()
	m.orphans = list
	m.mu.Unlock()
	m.orphansChanged.Wake()
}

// releaseOrphans releases orphans until ctx ends. If that fails, the next sweep finds the orphan
// again.
func (m *member) releaseOrphans(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.orphansChanged:
		}
		m.mu.Lock()
		list := m.orphans
		m.orphans = nil
		m.mu.Unlock()
		if err := m.sweeper.release(ctx, list, m.observe().pinned); err != nil && ctx.Err() == nil {
			m.logger.Warn("the finalizer of the former syncer stays on objects upstream", "err", m.errorText(err))
		}
	}
}

// sweeper releases the orphans of one cluster. Only its member uses it.
type sweeper struct {
	cluster              string
	owner                types.UID
	upstream, downstream metadata.Interface
	// discovery returns a client for the types of the cluster.
	discovery func(context.Context) (discovery.DiscoveryInterface, func(), error)
	prober    *prober
	report    func(error) string
	log       interface{ Info(msg string, args ...any) }
}

func (c *Controller) newSweeper(cluster *workloadv1alpha1.Cluster, m *member) (*sweeper, error) {
	downstream, err := metadata.NewForConfigAndClient(metadata.ConfigFor(m.downstream), m.http)
	if err != nil {
		return nil, err
	}
	return &sweeper{
		cluster: cluster.Name, owner: cluster.UID, upstream: c.objects, downstream: downstream,
		discovery: m.discovery, prober: m.prober, report: m.errorText, log: m.logger,
	}, nil
}

// release removes the syncer's finalizer from the orphans that do not exist in the cluster. It first
// checks that the registered cluster answers.
func (s *sweeper) release(ctx context.Context, list []orphan, pinned string) error {
	if len(list) == 0 {
		return nil
	}
	var now probe
	if trouble := s.prober.identify(ctx, &now, s.report); trouble != nil {
		return errors.New(trouble.message)
	}
	if now.uid != pinned {
		return fmt.Errorf("another cluster answers: its UID is %s", now.uid)
	}
	system, err := s.upstream.Resource(corev1.SchemeGroupVersion.WithResource("namespaces")).Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the UID of the kcp: %w", err)
	}
	offered, end, err := s.discovery(ctx)
	if err != nil {
		return err
	}
	defer end()
	_, lists, err := offered.ServerGroupsAndResources()
	// A type whose API group cannot be read is skipped below, like a type that is not served.
	if _, partial := discovery.GroupDiscoveryFailedErrorGroups(err); err != nil && !partial {
		return fmt.Errorf("asking the cluster for its types: %w", err)
	}
	identity := syncer.Identity{Upstream: system.UID, Cluster: s.cluster, ClusterUID: s.owner}
	var problems []error
	for _, x := range list {
		there, served := offeredAs(x.resource.GroupResource(), lists)
		if !served {
			continue // the objects of a type that is not served now are not known
		}
		if err := s.letGoOf(ctx, x, identity, there); err != nil {
			problems = append(problems, fmt.Errorf("%s %s/%s: %w", x.resource.Resource, x.namespace, x.name, err))
		}
	}
	return errors.Join(problems...)
}

// offeredAs returns a type in the first version that a server offers.
func offeredAs(resource schema.GroupResource, lists []*metav1.APIResourceList) (schema.GroupVersionResource, bool) {
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil || gv.Group != resource.Group {
			continue
		}
		if slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == resource.Resource }) {
			return gv.WithResource(resource.Resource), true
		}
	}
	return schema.GroupVersionResource{}, false
}

// letGoOf reads the upstream object first. If a client changes it after that, for example to send
// it to the cluster again, the write fails.
func (s *sweeper) letGoOf(ctx context.Context, x orphan, identity syncer.Identity, resource schema.GroupVersionResource) error {
	ctx, cancel := context.WithTimeoutCause(ctx, releaseTimeout, errSilence)
	defer cancel()
	object, err := s.upstream.Resource(x.resource).Namespace(x.namespace).Get(ctx, x.name, metav1.GetOptions{})
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	if object.UID != x.uid || !slices.Contains(holders(object.Finalizers), s.cluster) || isSent(object, s.cluster) {
		return nil
	}
	namespace := ""
	if x.namespace != "" {
		namespace = identity.Namespace(x.namespace)
	}
	there := s.downstream.Resource(resource).Namespace(namespace)
	// Most objects have one name on both sides. Do not ask for it twice.
	for _, name := range slices.Compact([]string{x.name, workloadv1alpha1.NameInCluster(object)}) {
		counterpart, err := there.Get(ctx, name, metav1.GetOptions{})
		switch {
		case err == nil && counterpart.Annotations[workloadv1alpha1.UpstreamUIDAnnotation] != "" &&
			(name == x.name || counterpart.Annotations[workloadv1alpha1.UpstreamUIDAnnotation] == string(object.UID)):
			return nil // the syncer sees it
		case err != nil && !isObjectGone(err):
			return fmt.Errorf("asking the cluster: %w", err)
		}
	}
	if err := release(ctx, s.upstream, x.resource, object, []string{s.cluster}, nil); err != nil {
		return err
	}
	s.log.Info("released an object that the former syncer held", "type", x.resource.Resource, "namespace", x.namespace, "name", x.name)
	return nil
}

// isObjectGone reports whether a server answered that the object does not exist. It returns false
// if the server does not serve the type.
func isObjectGone(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// isSent reports whether labels send an object to a cluster, so that its syncer sees it.
func isSent(object metav1.Object, cluster string) bool {
	return slices.Contains(workloadv1alpha1.Targets(object.GetLabels()), cluster)
}

// holders returns the clusters whose syncers have a finalizer on an object.
func holders(finalizers []string) []string {
	var names []string
	for _, f := range finalizers {
		if name, ok := strings.CutPrefix(f, workloadv1alpha1.FinalizerPrefix); ok {
			names = append(names, name)
		}
	}
	return names
}
