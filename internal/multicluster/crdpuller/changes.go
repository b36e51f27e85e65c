package crdpuller

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"rik.dev/rik/internal/multicluster/typehealth"
	"rik.dev/rik/internal/wakeup"
)

// watchedTypes are the types whose changes mean that a cluster serves other types.
var watchedTypes = []schema.GroupVersionResource{
	{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
}

// Changes sends a value when a Pull may return something new: once when the watch has started,
// and then when a CRD or an APIService changes. Several changes may be combined. A cluster that
// forbids this watch causes no values, and no cluster reports changes of its built-in types.
// Callers must therefore also pull at intervals. The channel is closed when ctx has ended and all
// goroutines have ended.
func (p *Puller) Changes(ctx context.Context) <-chan struct{} {
	changes := wakeup.New()
	changed := func() {
		changes.Wake()
	}
	var watching sync.WaitGroup
	for _, watched := range watchedTypes {
		informer, err := p.informer(watched, changed)
		if err != nil {
			p.config.Logger.Warn("watching for changes of the cluster's types failed; they are only polled", "resource", watched.Resource, "err", err)
			continue
		}
		watching.Go(func() { informer.RunWithContext(ctx) })
	}
	go func() {
		<-ctx.Done()
		watching.Wait()
		close(changes)
	}()
	return changes
}

func (p *Puller) informer(watched schema.GroupVersionResource, changed func()) (cache.SharedIndexInformer, error) {
	// There is no timeout, because a watch has no time limit.
	client, err := metadata.NewForConfigAndClient(p.config.Rest, &http.Client{Transport: p.transport, CheckRedirect: stay})
	if err != nil {
		return nil, fmt.Errorf("preparing to watch types: %w", err)
	}
	objects := client.Resource(watched)
	informer := cache.NewSharedIndexInformerWithOptions(typehealth.New(typehealth.Options{
		Client: client,
		Source: typehealth.Source{
			List:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return objects.List(ctx, o) },
			Watch: objects.Watch,
		},
	}).ListerWatcher(), &metav1.PartialObjectMetadata{}, cache.SharedIndexInformerOptions{ObjectDescription: watched.String()})
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		UpdateFunc: func(any, any) { changed() },
		DeleteFunc: func(any) { changed() },
	})
	if err != nil {
		return nil, fmt.Errorf("preparing to watch types: %w", err)
	}
	err = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		p.config.Logger.Debug("watching for changes of the cluster's types failed", "resource", watched.Resource, "err", err)
	})
	return informer, err
}
