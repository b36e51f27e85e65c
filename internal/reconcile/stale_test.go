package reconcile_test

import (
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"rik.dev/rik/internal/reconcile"
)

func TestIgnoreStale(t *testing.T) {
	t.Parallel()
	nodes, other := schema.GroupResource{Resource: "nodes"}, errors.New("another error")
	tests := []struct {
		name        string
		err         error
		gone, again bool
	}{
		{"no error", nil, true, false},
		{"the object is gone", apierrors.NewNotFound(nodes, "n"), true, false},
		{"a wrapped error", fmt.Errorf("updating: %w", apierrors.NewNotFound(nodes, "n")), true, false},
		{"the object was changed", apierrors.NewConflict(nodes, "n", other), false, true},
		{"the object was created", apierrors.NewAlreadyExists(nodes, "n"), false, true},
		{"another error of the server", apierrors.NewForbidden(nodes, "n", other), false, false},
		{"another error", other, false, false},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := reconcile.IgnoreStale(tc.err)
			if tc.gone {
				if got != nil {
					t.Errorf("IgnoreStale(%v) = %v, want nil", tc.err, got)
				}
				return
			}
			if !errors.Is(got, tc.err) || errors.Is(got, reconcile.ErrAgain) != tc.again {
				t.Errorf("IgnoreStale(%v) = %v, want the error, and ErrAgain: %v", tc.err, got, tc.again)
			}
		})
	}
}
