package cache_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"rik.dev/rik/internal/multicluster/splitter/cache"
)

type thing struct {
	metav1.ObjectMeta
}

func named(name string) *thing {
	return &thing{metav1.ObjectMeta{Name: name, Labels: map[string]string{"a": name}}}
}

// TestChanges tests what a handler gets for each event. It ignores objects of another type.
func TestChanges(t *testing.T) {
	t.Parallel()
	var got [][2]*thing
	h := cache.Changes(func(before, now *thing) { got = append(got, [2]*thing{before, now}) })
	one, two := named("one"), named("two")
	h.OnAdd(one, true)
	h.OnUpdate(one, two)
	h.OnDelete(two)
	h.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "two", Obj: two})
	h.OnAdd("a text", false)
	want := [][2]*thing{{nil, one}, {one, two}, {two, nil}, {two, nil}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the changes (-want +got):\n%s", diff)
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	informer := toolscache.NewSharedIndexInformer(&toolscache.ListWatch{}, nil, 0, toolscache.Indexers{
		"label": cache.IndexBy(func(o *thing) []string { return []string{o.Labels["a"]} }),
	})
	one, two := named("one"), named("two")
	for _, o := range []*thing{one, two} {
		if err := informer.GetIndexer().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	if got := cache.Get[thing](informer, "one"); got != one {
		t.Errorf("Get = %v, want %v", got, one)
	}
	if got := cache.Get[thing](informer, "three"); got != nil {
		t.Errorf("Get of a missing object = %v", got)
	}
	if got := cache.Find[thing](informer, "label", "two"); !slices.Equal(got, []*thing{two}) {
		t.Errorf("Find = %v, want %v", got, two)
	}
	if got := cache.List[thing](informer); len(got) != 2 {
		t.Errorf("List = %v, want two objects", got)
	}
	if got := cache.List[metav1.ObjectMeta](informer); len(got) != 0 {
		t.Errorf("List of another type = %v", got)
	}
}
