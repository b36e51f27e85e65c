// Package scheme has the types that rikctl's clients encode and decode.
package scheme

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	kubernetes "k8s.io/client-go/kubernetes/scheme"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// Scheme has rik's types, and the Kubernetes types that a cluster or a kcp serves.
var Scheme = newScheme()

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(kubernetes.AddToScheme(s))
	utilruntime.Must(rikv1alpha1.AddToScheme(s))
	utilruntime.Must(workloadv1alpha1.AddToScheme(s))
	utilruntime.Must(apiextensionsv1.AddToScheme(s))
	utilruntime.Must(apiresourcev1alpha1.AddToScheme(s))
	return s
}

// ParameterCodec encodes the options of subresources as a query.
var ParameterCodec = runtime.NewParameterCodec(Scheme)
