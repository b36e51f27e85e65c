package validation_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/install"
	"rik.dev/rik/internal/apiserver/apis/rik/validation"
)

// FuzzDecodeDefaultValidate decodes, defaults and validates hostile text, as the server does with a
// request. No step may panic. An accepted object must be accepted again after it was stored.
func FuzzDecodeDefaultValidate(f *testing.F) {
	for _, seed := range []string{
		`{"apiVersion":"rik.dev/v1alpha1","kind":"Workload","metadata":{"name":"a","namespace":"b"},"spec":{"containers":[{"name":"a","image":"b"}]}}`,
		`{"apiVersion":"rik.dev/v1alpha1","kind":"Workload","spec":{"strategy":{"maxSurge":"-1%","maxUnavailable":99999999999},"containers":[{"livenessProbe":{"http":{"headers":{"":""}}},"resources":{"limits":{"cpu":"1e999999999"}}}]}}`,
		`{"apiVersion":"rik.dev/v1alpha1","kind":"Workload","spec":{"kind":"Function","function":{"execution":{"rootfs":"http://["}}}}`,
		`{"apiVersion":"rik.dev/v1alpha1","kind":"Workload","spec":{"affinity":{"nodeRequired":[{"matchExpressions":[{"operator":"In"}]}],"instanceRequired":[{"selector":{"matchLabels":{"":""}}}]}}}`,
		`{"apiVersion":"rik.dev/v1alpha1","kind":"Workload","spec":{"volumes":[{"configMap":{"items":[{"path":"\u0000"}]}},null]}}`,
		`{"apiVersion":"rik.dev/v1alpha1","kind":"WorkloadRevision","template":{"app":{"repo":"\\x"}}}`,
		`{"apiVersion":"rik.dev/v1alpha1","kind":"Instance","spec":{"nodeName":"/"},"status":{"containers":[{}]}}`,
		`{"apiVersion":"rik.dev/v1alpha1","kind":"Node","spec":{"podCIDR":"::/999","taints":[{}]},"status":{"capacity":{"cpu":"-9e18"}}}`,
		`{"apiVersion":"rik.dev/v1alpha1","kind":"Tenant","spec":{"users":[{"verbs":["*","*"]}]}}`,
		"kind: Workload\napiVersion: rik.dev/v1alpha1\nspec: [1, 2]\n",
		"apiVersion: rik.dev/v1alpha1\nkind: Workload\nspec: {replicas: 1e3}\n",
	} {
		f.Add([]byte(seed))
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(rik.SchemeGroupVersion)
	f.Fuzz(func(t *testing.T, text []byte) {
		object, err := runtime.Decode(decoder, text)
		if err != nil {
			return
		}
		switch o := object.(type) {
		case *rik.Workload:
			validation.Warnings(&o.Spec)
			validation.Privileges(field.NewPath("spec"), &o.Spec.InstanceTemplate)
			created := validation.Workload(o)
			o.ResourceVersion = "1"
			if updated := validation.WorkloadUpdate(o, o.DeepCopy()); len(created) == 0 && len(updated) > 0 {
				t.Errorf("accepted at first, refused unchanged: %v", updated)
			}
			validation.WorkloadStatusUpdate(o, o)
		case *rik.WorkloadRevision:
			validation.Revision(o)
			validation.RevisionUpdate(o, o)
		case *rik.Instance:
			validation.Instance(o)
			validation.InstanceUpdate(o, o)
			validation.InstanceStatusUpdate(o, o)
		case *rik.Node:
			validation.Node(o)
			validation.NodeUpdate(o, o)
			validation.NodeStatusUpdate(o, o)
		case *rik.Tenant:
			validation.Tenant(o)
			validation.TenantUpdate(o, o)
			validation.TenantStatusUpdate(o, o)
		}
	})
}
