package datastoretest

import (
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
)

// expired checks that the API server's own storage reports a compacted revision as 410 Gone.
func (s *suite) expired(t *testing.T, keys string, revision int64) {
	t.Helper()
	scheme := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(scheme))
	e := s.store.Endpoint()
	config := storagebackend.NewDefaultConfig("/", serializer.NewCodecFactory(scheme).LegacyCodec(corev1.SchemeGroupVersion))
	config.CompactionInterval = 0
	// One endpoint is enough here. With several, Kubernetes checks them at the same time with one back-off
	// (checkClient of storage/feature), which the race detector reports.
	config.Transport = storagebackend.TransportConfig{ServerList: e.Servers[:1], TrustedCAFile: e.CAFile, CertFile: e.CertFile, KeyFile: e.KeyFile}
	resource := schema.GroupResource{Resource: "configmaps"}
	backend, destroy, err := factory.Create(*config.ForResource(resource),
		func() runtime.Object { return &corev1.ConfigMap{} }, func() runtime.Object { return &corev1.ConfigMapList{} }, keys)
	if err != nil {
		t.Fatal(err)
	}
	defer destroy()
	err = backend.GetList(t.Context(), keys, storage.ListOptions{
		ResourceVersion: strconv.FormatInt(revision, 10), ResourceVersionMatch: "Exact", Recursive: true, Predicate: storage.Everything,
	}, &corev1.ConfigMapList{})
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("a list of the API server at revision %d: %v, want 410 Gone", revision, err)
	}
}
