package store

import (
	"context"
	"slices"

	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Trusted reports whether the controller or an administrator makes the request.
func Trusted(ctx context.Context) bool {
	u, ok := genericapirequest.UserFrom(ctx)
	return ok && (u.GetName() == rikv1alpha1.UserController || slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup))
}
