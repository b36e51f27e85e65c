package syncer

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

const (
	manager      = workloadv1alpha1.FieldManager
	probeTimeout = 5 * time.Second
	// identifyInterval is the interval at which both sides are asked for their identity, until
	// they answer.
	identifyInterval = 2 * time.Second
)

// The errors with which Run returns before its context ends.
var (
	// ErrClusterGone: the Cluster was deleted, or created again under the same name.
	ErrClusterGone = errors.New("the Cluster upstream was deleted or replaced: restart the syncer")
	// ErrItself: both sides are the same kcp.
	ErrItself = errors.New("the physical cluster is the kcp itself: give the kubeconfig of another cluster")
	// ErrOtherCluster: the physical cluster is not the one that was registered as the Cluster.
	ErrOtherCluster = errors.New("the physical cluster is not the one that was registered: correct the kubeconfig, or register the cluster again")
)

var clusterType = Type{Resource: workloadv1alpha1.SchemeGroupVersion.WithResource("clusters"), Kind: "Cluster", Status: true}

// Syncer copies the objects of one cluster.
type Syncer struct {
	config               Config
	upstream, downstream *side
}

// New validates the configuration. It does not connect.
func New(config Config) (*Syncer, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	config.Logger = config.Logger.With("cluster", config.Cluster)
	upstream, err := newSide("the kcp", config.Upstream)
	if err != nil {
		return nil, err
	}
	downstream, err := newSide("the physical cluster", config.Downstream)
	if err != nil {
		return nil, err
	}
	return &Syncer{config: config, upstream: upstream, downstream: downstream}, nil
}

// Run copies objects until ctx ends, and then returns nil. It returns an error if it cannot
// continue: ErrClusterGone, ErrItself or ErrOtherCluster. After that it may be called again. If a
// side is unreachable, Run waits for it.
func (s *Syncer) Run(ctx context.Context) error {
	cluster, upstreamUID, err := s.identify(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	identity := Identity{Upstream: upstreamUID, Cluster: cluster.Name, ClusterUID: cluster.UID}
	e := newEngine(s, identity, cluster)
	defer e.metrics.register(s.config.Metrics, e)()
	return e.run(ctx)
}

// identify waits until both sides have returned their identity.
func (s *Syncer) identify(ctx context.Context) (*workloadv1alpha1.Cluster, types.UID, error) {
	ticker := time.NewTicker(identifyInterval)
	defer ticker.Stop()
	for said := ""; ; {
		cluster, upstreamUID, err := s.introduce(ctx)
		if err == nil || errors.Is(err, ErrOtherCluster) || errors.Is(err, ErrItself) {
			return cluster, upstreamUID, err
		}
		if err.Error() != said {
			said = err.Error()
			s.config.Logger.Warn("waiting for both sides", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil, "", ctx.Err()
		case <-ticker.C:
		}
	}
}

func (s *Syncer) introduce(ctx context.Context) (*workloadv1alpha1.Cluster, types.UID, error) {
	found, err := s.upstream.get(ctx, clusterType, "", s.config.Cluster)
	if err != nil {
		return nil, "", fmt.Errorf("reading the Cluster %s upstream: %w", s.config.Cluster, err)
	}
	cluster, err := toCluster(found)
	if err != nil {
		return nil, "", err
	}
	upstreamUID, err := systemUID(ctx, s.upstream)
	if err != nil {
		return nil, "", err
	}
	downstreamUID, err := systemUID(ctx, s.downstream)
	if err != nil {
		return nil, "", err
	}
	if downstreamUID == upstreamUID {
		return nil, "", fmt.Errorf("%w: its kube-system namespace has the same UID, %s", ErrItself, downstreamUID)
	}
	if cluster.Status.UID != "" && cluster.Status.UID != string(downstreamUID) {
		return nil, "", fmt.Errorf("%w: its kube-system namespace has UID %s, the Cluster says %s", ErrOtherCluster, downstreamUID, cluster.Status.UID)
	}
	return cluster, upstreamUID, nil
}

// systemUID returns the UID of the kube-system namespace, which identifies a server.
func systemUID(ctx context.Context, s *side) (types.UID, error) {
	ns, err := s.get(ctx, namespaceType, "", "kube-system")
	if err != nil {
		return "", fmt.Errorf("reading the namespace kube-system of %s: %w", s.name, err)
	}
	return ns.GetUID(), nil
}

func toCluster(object *unstructured.Unstructured) (*workloadv1alpha1.Cluster, error) {
	cluster := &workloadv1alpha1.Cluster{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, cluster); err != nil {
		return nil, fmt.Errorf("reading the Cluster: %w", err)
	}
	return cluster, nil
}

var crdType = Type{
	Resource: schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	Kind:     "CustomResourceDefinition",
}

// lookAtType returns whether the type upstream is being removed. Deleting a CRD also deletes its
// objects upstream, but these deletions are not meant for the clusters. The server marks the CRD
// before it deletes the first object, so a check after that is conclusive. The core group has no
// CRDs. All other types that a kcp syncs are CRDs.
func (e *engine) lookAtType(ctx context.Context, t Type) (typeView, error) {
	if t.Resource.Group == "" {
		return typeServed, nil
	}
	crd, err := e.upstream.metadata(ctx, crdType, t.Resource.GroupResource().String())
	switch {
	case apierrors.IsNotFound(err):
		return typeEnding, nil
	case err != nil:
		return typeUnknown, fmt.Errorf("checking before a deletion whether the type %s is being removed upstream: %w", t.Resource.GroupResource(), err)
	case crd.GetDeletionTimestamp() != nil:
		return typeEnding, nil
	default:
		return typeServed, nil
	}
}
