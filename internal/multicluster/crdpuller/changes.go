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
)

// heralds are the objects whose change means that a cluster serves something else.
var heralds = []schema.GroupVersionResource{
	{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
}

// Changes says that a Pull may bring something else than before: once when watching has
// begun, and then when a CRD or an APIService changes. Several changes may be one. A
// cluster that forbids to watch these says nothing, and none says that its built-in
// types have changed, so callers pull from time to time all the same. The channel is
// closed when ctx has ended and nothing runs any more.
func (p *Puller) Changes(ctx context.Context) <-chan struct{} {
	changes := make(chan struct{}, 1)
	changed := func() {
		select {
		case changes <- struct{}{}:
		default: // one is waiting to be seen
		}
	}
	var watching sync.WaitGroup
	for _, herald := range heralds {
		informer, err := p.informer(herald, changed)
		if err != nil {
			p.config.Logger.Warn("types of the cluster are polled only", "herald", herald.Resource, "err", err)
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

func (p *Puller) informer(herald schema.GroupVersionResource, changed func()) (cache.SharedIndexInformer, error) {
	// No timeout: a watch takes as long as it takes.
	client, err := metadata.NewForConfigAndClient(p.config.Rest, &http.Client{Transport: p.transport, CheckRedirect: stay})
	if err != nil {
		return nil, fmt.Errorf("preparing to watch: %w", err)
	}
	objects := client.Resource(herald)
	informer := cache.NewSharedIndexInformerWithOptions(typehealth.New(typehealth.Options{
		Client: client,
		Source: typehealth.Source{
			List:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return objects.List(ctx, o) },
			Watch: objects.Watch,
		},
	}).ListerWatcher(), &metav1.PartialObjectMetadata{}, cache.SharedIndexInformerOptions{ObjectDescription: herald.String()})
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		UpdateFunc: func(any, any) { changed() },
		DeleteFunc: func(any) { changed() },
	})
	if err != nil {
		return nil, fmt.Errorf("preparing to watch: %w", err)
	}
	err = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		p.config.Logger.Debug("watching for changes of the types", "herald", herald.Resource, "err", err)
	})
	return informer, err
}
