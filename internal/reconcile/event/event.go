// Package event creates recorders of Kubernetes events that stop together with their users.
package event

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// NewRecorder returns a recorder that writes events of a component to a sink until the caller
// calls end. Call end after the last user of the recorder has stopped. The recorder limits
// events: 25 about an object, then one every five minutes. It drops events that it cannot write.
// The scheme is for objects that have no kind set.
func NewRecorder(to record.EventSink, scheme *runtime.Scheme, component string) (recorder record.EventRecorder, end func()) {
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(to)
	return broadcaster.NewRecorder(scheme, corev1.EventSource{Component: component}), broadcaster.Shutdown
}

// NewSink returns a sink that writes events until ctx ends. client-go's own sink would continue
// to wait for a server that does not answer.
func NewSink(ctx context.Context, events typedcorev1.EventInterface) record.EventSink {
	return sink{ctx, events}
}

type sink struct {
	ctx    context.Context //nolint:containedctx // the interface has no place for it
	events typedcorev1.EventInterface
}

// Create implements record.EventSink.
func (s sink) Create(event *corev1.Event) (*corev1.Event, error) {
	return s.events.CreateWithEventNamespaceWithContext(s.ctx, event)
}

// Update implements record.EventSink.
func (s sink) Update(event *corev1.Event) (*corev1.Event, error) {
	return s.events.UpdateWithEventNamespaceWithContext(s.ctx, event)
}

// Patch implements record.EventSink.
func (s sink) Patch(event *corev1.Event, data []byte) (*corev1.Event, error) {
	return s.events.PatchWithEventNamespaceWithContext(s.ctx, event, data)
}
