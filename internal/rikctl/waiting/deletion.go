package waiting

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Deletion returns the state of a wait until an object is gone. kind is lower-case.
func Deletion(kind string, o client.Object) State {
	name := o.GetName()
	if o.GetNamespace() != "" {
		name = o.GetNamespace() + "/" + name
	}
	s := State{For: fmt.Sprintf("%s %s: Terminating", kind, name)}
	if finalizers := o.GetFinalizers(); len(finalizers) > 0 {
		s.For += " (finalizers: " + strings.Join(finalizers, ", ") + ")"
	}
	return s
}

// Observe returns a client that calls saw with each object that a caller gets. kubectl's waits get
// the object before they watch it.
func Observe(c dynamic.Interface, saw func(client.Object)) dynamic.Interface {
	return observing{c, saw}
}

type observing struct {
	dynamic.Interface
	saw func(client.Object)
}

// Resource implements dynamic.Interface.
func (o observing) Resource(r schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	all := o.Interface.Resource(r)
	return observedAll{observed{all, o.saw}, all}
}

// observedAll is a resource without a namespace yet.
type observedAll struct {
	observed
	all dynamic.NamespaceableResourceInterface
}

// Namespace implements dynamic.NamespaceableResourceInterface.
func (o observedAll) Namespace(name string) dynamic.ResourceInterface {
	return observed{o.all.Namespace(name), o.saw}
}

type observed struct {
	dynamic.ResourceInterface
	saw func(client.Object)
}

// Get implements dynamic.ResourceInterface.
func (o observed) Get(ctx context.Context, name string, options metav1.GetOptions, subresources ...string) (*unstructured.Unstructured, error) {
	object, err := o.ResourceInterface.Get(ctx, name, options, subresources...)
	if err == nil {
		o.saw(object)
	}
	return object, err
}
