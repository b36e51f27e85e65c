package syncerauth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/core"
)

var (
	errEventForm = errors.New("a syncer's event must name its object: apiVersion, kind, namespace, name and UID")
	errEventOf   = errors.New("syncers may create events only about objects that are sent to their own cluster")
)

// checkEvent allows a syncer to create events about objects that are sent to its cluster, and
// about no others. People read events and act on them.
func (p *Plugin) checkEvent(ctx context.Context, cluster string, object runtime.Object) error {
	event, ok := object.(*core.Event)
	if !ok {
		return fmt.Errorf("programmer error: an event is a %T", object)
	}
	about := &event.InvolvedObject
	if about.APIVersion == "" || about.Kind == "" || about.Name == "" || about.UID == "" || event.Related != nil {
		return errEventForm
	}
	found, err := p.involved(ctx, about)
	switch {
	case apierrors.IsNotFound(err):
		return errEventOf
	case err != nil:
		return fmt.Errorf("reading the object of the event: %w", err)
	case found.GetUID() != about.UID || !concerns(found, cluster):
		return errEventOf
	}
	return nil
}

// involved reads the current object of an event.
func (p *Plugin) involved(ctx context.Context, about *core.ObjectReference) (*unstructured.Unstructured, error) {
	gv, err := schema.ParseGroupVersion(about.APIVersion)
	if err != nil {
		return nil, errEventForm
	}
	// Use discovery of the one version and not a mapper, which would not have a type that was
	// just published.
	list, err := p.client.Discovery().ServerResourcesForGroupVersion(gv.String())
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool {
		return r.Kind == about.Kind && !strings.Contains(r.Name, "/")
	})
	if i < 0 {
		return nil, errEventOf
	}
	resource := p.objects.Resource(gv.WithResource(list.APIResources[i].Name))
	if list.APIResources[i].Namespaced != (about.Namespace != "") {
		return nil, errEventForm
	}
	return resource.Namespace(about.Namespace).Get(ctx, about.Name, metav1.GetOptions{})
}

// isEventCreation reports whether a write creates an event.
func isEventCreation(a admission.Attributes) bool {
	resource := a.GetResource().GroupResource()
	return a.GetOperation() == admission.Create && a.GetSubresource() == "" && isEvents(resource.Group, resource.Resource)
}
