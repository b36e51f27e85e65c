package syncer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// verifiedFor is how long a verified namespace is not checked again.
const verifiedFor = time.Minute

var namespaceType = Type{Resource: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, Kind: "Namespace"}

// errOtherNamespace: the namespace has the name that belongs to this syncer, but was created by
// another client.
var errOtherNamespace = errors.New("the namespace exists in the cluster and does not have this kcp's locator")

// namespaces maps downstream namespaces to upstream namespaces. It only gets and creates
// namespaces, because a syncer in a cluster has no other permissions for them.
type namespaces struct {
	identity   Identity
	downstream *side

	mu       sync.Mutex
	upstream map[string]string
	verified map[string]time.Time
}

func newNamespaces(identity Identity, downstream *side) *namespaces {
	return &namespaces{
		identity: identity, downstream: downstream,
		upstream: map[string]string{}, verified: map[string]time.Time{},
	}
}

// learn records an upstream namespace, so that its downstream counterpart is known by name.
func (n *namespaces) learn(upstreamNamespace string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.upstream[n.identity.Namespace(upstreamNamespace)] = upstreamNamespace
}

// known returns the upstream namespace of a downstream name, without a request.
func (n *namespaces) known(downstreamNamespace string) (string, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name, ok := n.upstream[downstreamNamespace]
	return name, ok
}

// resolve is like known, but asks downstream if the name is not known. It returns false for a
// namespace that this syncer did not create.
func (n *namespaces) resolve(ctx context.Context, downstreamNamespace string) (string, bool, error) {
	if name, ok := n.known(downstreamNamespace); ok {
		return name, true, nil
	}
	found, err := n.downstream.get(ctx, namespaceType, "", downstreamNamespace)
	if apierrors.IsNotFound(err) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("looking at the namespace %s downstream: %w", downstreamNamespace, err)
	}
	name, ours := n.identity.resolve(found)
	if ours {
		n.learn(name)
	}
	return name, ours, nil
}

// verify checks that the downstream namespace exists and was created by this syncer. It returns
// errOtherNamespace if it was not, and a NotFound error if it does not exist.
func (n *namespaces) verify(ctx context.Context, upstreamNamespace string) error {
	name := n.identity.Namespace(upstreamNamespace)
	if n.isFresh(name) {
		return nil
	}
	found, err := n.downstream.get(ctx, namespaceType, "", name)
	if err != nil {
		return err
	}
	if of, ours := n.identity.resolve(found); !ours || of != upstreamNamespace {
		return fmt.Errorf("%w: %s", errOtherNamespace, name)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.verified[name] = time.Now()
	return nil
}

// ensure creates the downstream namespace if it does not exist. It does not change an existing
// one.
func (n *namespaces) ensure(ctx context.Context, upstreamNamespace string) error {
	err := n.verify(ctx, upstreamNamespace)
	if !apierrors.IsNotFound(err) {
		return err
	}
	ns, err := n.identity.newNamespace(upstreamNamespace)
	if err != nil {
		return err
	}
	_, err = ask(ctx, n.downstream, func(ctx context.Context) (*unstructured.Unstructured, error) {
		return n.downstream.resource(namespaceType, "").Create(ctx, ns, metav1.CreateOptions{FieldManager: manager})
	})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating the namespace %s downstream: %w", ns.GetName(), err)
	}
	return n.verify(ctx, upstreamNamespace)
}

func (n *namespaces) isFresh(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	at, ok := n.verified[name]
	return ok && time.Since(at) < verifiedFor
}

// forget makes verify check the namespace again, after a write has found that it is gone.
func (n *namespaces) forget(upstreamNamespace string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.verified, n.identity.Namespace(upstreamNamespace))
}
