// Package install registers all versions of rik.dev in a scheme.
package install

import (
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/v1alpha1"
)

// Install registers the hub types and all versions of rik.dev. It panics if the scheme has other
// types with these names. Call it once for a scheme, before the scheme is used.
func Install(scheme *runtime.Scheme) {
	utilruntime.Must(rik.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	utilruntime.Must(scheme.SetVersionPriority(rikv1alpha1.SchemeGroupVersion))
}
