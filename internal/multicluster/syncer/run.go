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
	// identifyInterval is how often the two sides are asked who they are, until they say.
	identifyInterval = 2 * time.Second
)

// What ends Run before its context does.
var (
	// ErrClusterGone: the Cluster was deleted, or made anew under the same name.
	ErrClusterGone = errors.New("the Cluster upstream is gone or another one: start the syncer again for what is there now")
	// ErrItself: both sides are the same kcp.
	ErrItself = errors.New("the physical cluster is the kcp itself: give the kubeconfig of another cluster")
	// ErrOtherCluster: the physical cluster is not the one that the Cluster stands for.
	ErrOtherCluster = errors.New("the physical cluster is not the one that was registered: correct the kubeconfig, or register the cluster anew")
)

var clusterType = Type{Resource: workloadv1alpha1.SchemeGroupVersion.WithResource("clusters"), Kind: "Cluster", Status: true}

// Syncer carries the objects of one cluster.
type Syncer struct {
	config               Config
	upstream, downstream *side
}

// New checks the configuration. It connects to nothing.
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

// Run carries objects until ctx ends, and returns nil then, or an error when there is
// no point in going on: ErrClusterGone, ErrOtherCluster. Afterward it may be
// called again. What cannot be reached is waited for.
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

// identify waits until both sides have said who they are.
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

// systemUID tells one server from another by its kube-system namespace.
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

// lookAtType says whether the type upstream is there to stay. When a CRD is deleted its
// objects are deleted too, which nobody meant for the clusters. The server marks the
// CRD before it deletes the first object, so that asking afterward is conclusive. No
// CRD can be of the core group, and all else that a kcp carries is one.
func (e *engine) lookAtType(ctx context.Context, t Type) (typeView, error) {
	if t.Resource.Group == "" {
		return typeServed, nil
	}
	crd, err := e.upstream.metadata(ctx, crdType, t.Resource.GroupResource().String())
	switch {
	case apierrors.IsNotFound(err):
		return typeEnding, nil
	case err != nil:
		return typeUnknown, fmt.Errorf("looking whether the type %s ends upstream, before a deletion: %w", t.Resource.GroupResource(), err)
	case crd.GetDeletionTimestamp() != nil:
		return typeEnding, nil
	default:
		return typeServed, nil
	}
}
