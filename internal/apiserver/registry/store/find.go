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

// ByUID is the index, which every store has, of objects by their UID.
const ByUID = "metadata.uid"

// indexers are the indexes that the watch cache keeps.
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

// Freshness says how new what is read must be.
type Freshness string

const (
	// Cached reads what the server knows by now, without asking the datastore.
	Cached Freshness = "0"
	// Latest reads nothing older than the last acknowledged write.
	Latest Freshness = ""
)

// Find returns the objects of a store that an index, ByUID or one of the store's
// Options.Found, has under a value: in the namespace of ctx, or in all of them
// if it has none. The datastore, which has no indexes, is searched while the
// cache is not there.
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
			return fmt.Errorf("programmer error: %T in a list of another type", obj)
		}
		out = append(out, object)
		return nil
	})
	return out, err
}
