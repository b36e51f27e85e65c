package negotiation

import (
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	"rik.dev/rik/internal/testkit/kcptest"
)

// TestNativeTypesAreReadAgain tests the case that a kcp of another version has taken over.
func TestNativeTypesAreReadAgain(t *testing.T) {
	t.Parallel()
	config := kcptest.LoopbackConfig(kcptest.Shared(t))
	c, err := New(Config{Rest: config, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if c.client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	now, err := c.look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	services, gone := schema.GroupResource{Resource: "services"}, schema.GroupResource{Resource: "gone"}
	before := &upstream{anchor: now.anchor, native: map[schema.GroupResource][]apiresourcev1alpha1.CommonAPIResourceSpec{}}
	for key, specs := range now.native {
		before.native[key] = specs
	}
	older := *before.native[services][0].DeepCopy()
	older.OpenAPIV3Schema.Raw = []byte(`{"type":"object"}`)
	before.native[services], before.native[gone] = []apiresourcev1alpha1.CommonAPIResourceSpec{older}, before.native[services]
	c.upstream.Store(before)

	changed, err := c.refresh(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]schema.GroupResource{services, gone}, changed); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(now.native, c.upstream.Load().native); diff != "" {
		t.Errorf("what passes see (-want +got):\n%s", diff)
	}
	if changed, err := c.refresh(t.Context()); err != nil || len(changed) != 0 {
		t.Errorf("looking once more: %v, %v, want nothing changed", changed, err)
	}
}
