package nodeapi

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/finalstate"
	"rik.dev/rik/internal/rpc/nodev1"
)

// behind is how long a request may wait until the index shows the binding that justifies it.
// The scheduler dispatches as soon as the binding is durable, so the watch of a server whose
// controller is not active may be later.
const behind = 3 * time.Second

// objectKey identifies an object that a node can request.
type objectKey struct {
	kind            nodev1.Kind
	namespace, name string
}

// watch follows Nodes, and the metadata of ConfigMaps and Secrets.
func (s *Server) watch(ctx context.Context) error {
	if err := s.watchNodes(ctx); err != nil {
		return fmt.Errorf("watching nodes: %w", err)
	}
	for kind, name := range map[nodev1.Kind]string{nodev1.Kind_KIND_CONFIG_MAP: "ConfigMap", nodev1.Kind_KIND_SECRET: "Secret"} {
		if err := s.watchMetadata(ctx, kind, name); err != nil {
			return fmt.Errorf("watching every %s: %w", name, err)
		}
	}
	return nil
}

// instanceChanged follows the index. A deleted instance is no longer in it, so no node can
// measure it again.
func (s *Server) instanceChanged(before, after *rikv1alpha1.Instance) {
	s.bindings.observe(before, after)
	if after == nil {
		s.cfg.Measurements.ForgetInstance(before.UID)
	}
}

// nodeDeleted forgets a node.
func (s *Server) nodeDeleted(node *rikv1alpha1.Node) {
	s.nodeGone(node) // first, so that its connection measures nothing more
	s.cfg.Measurements.ForgetNode(node.Name)
}

// watchNodes disconnects nodes whose Nodes are deleted.
func (s *Server) watchNodes(ctx context.Context) error {
	nodes, err := s.cfg.Informers.GetInformer(ctx, &rikv1alpha1.Node{})
	if err != nil {
		return err
	}
	_, err = nodes.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, obj any) {
			if node, ok := obj.(*rikv1alpha1.Node); ok && node.DeletionTimestamp != nil {
				s.nodeGone(node)
			}
		},
		DeleteFunc: func(obj any) {
			if node, ok := finalstate.As[*rikv1alpha1.Node](obj); ok {
				s.nodeDeleted(node)
			}
		},
	})
	return err
}

func (s *Server) watchMetadata(ctx context.Context, kind nodev1.Kind, name string) error {
	meta := &metav1.PartialObjectMetadata{}
	meta.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(name))
	informer, err := s.cfg.Informers.GetInformer(ctx, meta)
	if err != nil {
		return err
	}
	changed := func(obj any) {
		if o, ok := finalstate.As[metav1.Object](obj); ok {
			s.changed(ctx, objectKey{kind, o.GetNamespace(), o.GetName()})
		}
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: changed,
		UpdateFunc: func(old, obj any) {
			if old.(metav1.Object).GetResourceVersion() != obj.(metav1.Object).GetResourceVersion() {
				changed(obj)
			}
		},
		DeleteFunc: changed,
	})
	return err
}

// changed wakes the connections whose nodes received the object.
func (s *Server) changed(_ context.Context, key objectKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.nodes {
		c.refresh(key)
	}
}

// answer reads an object that a node requested, if the node may read it. keep reports whether
// changes of the object are to be sent to the node.
func (s *Server) answer(ctx context.Context, node string, key objectKey) (answer *nodev1.Object, keep bool) {
	answer = &nodev1.Object{Kind: key.kind, Namespace: key.namespace, Name: key.name}
	if !s.mayRead(ctx, node, key) {
		s.log.Warn("refused to send an object to a node", "node", node, "kind", key.kind.String(), "namespace", key.namespace, "name", key.name)
		answer.Error = "no instance on this node refers to it"
		return answer, false
	}
	var err error
	switch key.kind {
	case nodev1.Kind_KIND_REVISION:
		err = s.readRevision(ctx, key, answer)
	case nodev1.Kind_KIND_CONFIG_MAP:
		err = s.readConfigMap(ctx, key, answer)
	case nodev1.Kind_KIND_FENCE:
		return answer, s.readFence(ctx, node, key, answer)
	default:
		err = s.readSecret(ctx, key, answer)
	}
	switch {
	case apierrors.IsNotFound(err): // Found stays false
	case err != nil:
		s.log.Error("reading an object for a node", "node", node, "namespace", key.namespace, "name", key.name, "err", err)
		answer.Error = "it cannot be read at the moment"
	}
	return answer, key.kind != nodev1.Kind_KIND_REVISION
}

// mayRead reports whether a node may read an object. If no binding justifies it yet, mayRead
// waits a moment for the watch.
func (s *Server) mayRead(ctx context.Context, node string, key objectKey) bool {
	ctx, cancel := context.WithTimeout(ctx, behind)
	defer cancel()
	switch key.kind {
	case nodev1.Kind_KIND_REVISION:
		return s.bindings.await(ctx, node, key.namespace, func(revisions map[string]struct{}) bool {
			_, ok := revisions[key.name]
			return ok
		})
	case nodev1.Kind_KIND_FENCE:
		return s.bindings.await(ctx, node, key.namespace, func(revisions map[string]struct{}) bool { return len(revisions) > 0 })
	case nodev1.Kind_KIND_CONFIG_MAP, nodev1.Kind_KIND_SECRET:
		return s.bindings.await(ctx, node, key.namespace, func(revisions map[string]struct{}) bool {
			for name := range revisions {
				if s.refers(ctx, name, key) {
					return true
				}
			}
			return false
		})
	default:
		return false
	}
}

// refers reports whether the revision's template refers to the object.
func (s *Server) refers(ctx context.Context, revision string, key objectKey) bool {
	object, err := s.revision(ctx, client.ObjectKey{Namespace: key.namespace, Name: revision})
	if err != nil {
		return false
	}
	references := object.Template.References()
	if key.kind == nodev1.Kind_KIND_SECRET {
		return slices.Contains(references.Secrets, key.name)
	}
	return slices.Contains(references.ConfigMaps, key.name)
}

// revision reads from the cache. If the cache does not have the revision yet, it reads from the
// API server.
func (s *Server) revision(ctx context.Context, name client.ObjectKey) (*rikv1alpha1.WorkloadRevision, error) {
	var object rikv1alpha1.WorkloadRevision
	err := s.cfg.Reader.Get(ctx, name, &object)
	if apierrors.IsNotFound(err) {
		err = s.cfg.Client.Get(ctx, name, &object)
	}
	return &object, err
}

func (s *Server) readRevision(ctx context.Context, key objectKey, answer *nodev1.Object) error {
	object, err := s.revision(ctx, client.ObjectKey{Namespace: key.namespace, Name: key.name})
	if err != nil {
		return err
	}
	data, err := object.Template.Marshal()
	if err != nil {
		return fmt.Errorf("encoding the template: %w", err)
	}
	answer.Found, answer.Data = true, data
	return nil
}

// readFence reads the age of the last proof. A node without an answer stops its fenced
// instances, so an error needs only to be reported.
func (s *Server) readFence(ctx context.Context, node string, key objectKey, answer *nodev1.Object) (keep bool) {
	if s.cfg.Fences == nil {
		return false
	}
	age, proven, found, err := s.cfg.Fences.Fence(ctx, key.namespace)
	if err != nil {
		s.log.Warn("reading a fence for a node", "node", node, "namespace", key.namespace, "err", err)
		answer.Error = "it cannot be read at the moment"
		return false
	}
	answer.Found = found
	if proven {
		// Rounded up, because a higher age is safer.
		millis := age.Milliseconds() + 1
		answer.AgeMillis = &millis
	}
	return false
}

func (s *Server) readConfigMap(ctx context.Context, key objectKey, answer *nodev1.Object) error {
	var object corev1.ConfigMap
	if err := s.cfg.Client.Get(ctx, client.ObjectKey{Namespace: key.namespace, Name: key.name}, &object); err != nil {
		return err
	}
	answer.Found = true
	answer.Entries = make(map[string][]byte, len(object.Data)+len(object.BinaryData))
	for name, value := range object.Data {
		answer.Entries[name] = []byte(value)
	}
	for name, value := range object.BinaryData {
		answer.Entries[name] = value
	}
	return nil
}

func (s *Server) readSecret(ctx context.Context, key objectKey, answer *nodev1.Object) error {
	var object corev1.Secret
	if err := s.cfg.Client.Get(ctx, client.ObjectKey{Namespace: key.namespace, Name: key.name}, &object); err != nil {
		return err
	}
	answer.Found, answer.Entries, answer.Type = true, object.Data, string(object.Type)
	return nil
}
