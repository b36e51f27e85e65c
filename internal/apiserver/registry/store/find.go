package store

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
)

// ByUID is the name of the index of objects by UID. Every store has it.
const ByUID = "metadata.uid"

// indexers returns the indexes of the watch cache.
func (o Options[T]) indexers() *cache.Indexers {
	out := cache.Indexers{
		storage.FieldIndex(ByUID): o.index(func(object T) string { return string(object.GetUID()) }, false),
	}
	if o.Indexed != "" {
		out[storage.FieldIndex(o.Indexed)] = o.index(o.IndexedValue, true)
	}
	for name, value := range o.Found {
		out[storage.FieldIndex(name)] = o.index(value, false)
	}
	return &out
}

func (o Options[T]) index(value func(T) string, empty bool) cache.IndexFunc {
	return func(obj any) ([]string, error) {
		object, ok := obj.(T)
		if !ok {
			return nil, fmt.Errorf("indexing %T as %s", obj, o.Plural)
		}
		if v := value(object); v != "" || empty {
			return []string{v}, nil
		}
		return nil, nil
	}
}

// Freshness is how recent the returned data must be.
type Freshness string

const (
	// Cached returns the server's cached data, without a request to the datastore.
	Cached Freshness = "0"
	// Latest returns no data from before the last acknowledged write.
	Latest Freshness = ""
)

// Find returns the objects with a value in an index of a store: ByUID or one of the store's
// Options.Found. It searches the namespace of ctx, or all namespaces if ctx has none. While
// there is no cache, it searches the datastore, which has no indexes.
func Find[T Object](ctx context.Context, s *genericregistry.Store, index, value string, f Freshness) ([]T, error) {
	predicate := s.PredicateFunc(labels.Everything(), fields.OneTermEqualSelector(index, value))
	predicate.IndexFields = []string{index}
	if _, ok := genericapirequest.NamespaceFrom(ctx); !ok {
		ctx = genericapirequest.WithNamespace(ctx, "")
	}
	list, err := s.ListPredicate(ctx, predicate, &internalversion.ListOptions{ResourceVersion: string(f)})
	if err != nil {
		return nil, err
	}
	var out []T
	err = meta.EachListItem(list, func(obj runtime.Object) error {
		object, ok := obj.(T)
		if !ok {
			return fmt.Errorf("programmer error: a list has an item of type %T", obj)
		}
		out = append(out, object)
		return nil
	})
	return out, err
}
