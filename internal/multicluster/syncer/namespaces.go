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

// verifiedFor is how long a namespace that bore our locator is not looked at again.
const verifiedFor = time.Minute

var namespaceType = Type{Resource: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, Kind: "Namespace"}

// errOtherNamespace: the namespace's name is ours by its hash, and somebody else has it.
var errOtherNamespace = errors.New("the namespace exists in the cluster and does not bear this kcp's locator")

// namespaces knows which namespace downstream stands for which upstream. It only ever
// gets and creates them: that is all a syncer in a cluster may do.
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

// learn notes a namespace upstream, so that its counterpart is known by name.
func (n *namespaces) learn(upstreamNamespace string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.upstream[n.identity.Namespace(upstreamNamespace)] = upstreamNamespace
}

// known says which namespace upstream a name downstream stands for, without asking.
func (n *namespaces) known(downstreamNamespace string) (string, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name, ok := n.upstream[downstreamNamespace]
	return name, ok
}

// resolve asks downstream, and returns false for a namespace that is not ours.
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

// verify makes sure that the namespace downstream exists and is ours. It returns
// errOtherNamespace when it is not, and a NotFound error when there is none.
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

// ensure makes the namespace downstream if there is none, and never changes one.
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

// forget has the namespace looked at again: a write found it gone.
func (n *namespaces) forget(upstreamNamespace string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.verified, n.identity.Namespace(upstreamNamespace))
}
