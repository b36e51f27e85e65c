package datastore_test

import (
	"testing"

	"rik.dev/rik/internal/apiserver/datastore/datastoretest"
)

func TestMain(m *testing.M) { datastoretest.Main(m) }

// TestConformance runs the same suite on each kind of datastore.
func TestConformance(t *testing.T) {
	t.Parallel()
	for _, kind := range datastoretest.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			datastoretest.Run(t, kind.New(t))
		})
	}
}
