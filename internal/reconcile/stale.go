package reconcile

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// IgnoreStale reduces the errors of writes that only mean that the cache is out of date. If the
// object is gone, nothing is left to do, and it returns nil. If the object was changed or created
// in the meantime, it returns ErrAgain, because the watch will deliver the newer state. It
// returns other errors as they are.
func IgnoreStale(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return fmt.Errorf("%w: %w", ErrAgain, err)
	}
	return err
}
