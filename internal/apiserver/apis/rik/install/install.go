// Package install puts every version of rik.dev into a scheme.
package install

import (
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/v1alpha1"
)

// Install registers the hub types and all versions of rik.dev. It panics when
// the scheme holds something else under those names. A scheme takes it once,
// and not while others use the scheme.
func Install(scheme *runtime.Scheme) {
	utilruntime.Must(rik.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	utilruntime.Must(scheme.SetVersionPriority(rikv1alpha1.SchemeGroupVersion))
}
