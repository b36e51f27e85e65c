package apiserver

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/client-go/rest"
)

// TestReadinessDoesNotWaitAsAsked: a server that has just started and does not have all its
// types asks clients to wait five seconds. Before this fix, that delayed its own start.
func TestReadinessDoesNotWaitAsAsked(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/test.rik.dev/v1" {
			t.Errorf("%s was asked for", r.URL.Path)
		}
		if asked.Add(1) == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "test.rik.dev/v1", "resources": [{"name": "things"}]}`))
	}))
	t.Cleanup(server.Close)
	client, err := clientset.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Group: "test.rik.dev", Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "things"},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1"}},
	}}
	if err := discovered(t.Context(), client.Discovery().RESTClient(), crd); err == nil {
		t.Error("discovered waited until the server knew the type, instead of saying that it does not")
	}
	if err := discovered(t.Context(), client.Discovery().RESTClient(), crd); err != nil || asked.Load() != 2 {
		t.Errorf("asked again: %v, after %d requests, want 2", err, asked.Load())
	}
	crd.Spec.Names.Plural = "others"
	if err := discovered(t.Context(), client.Discovery().RESTClient(), crd); err == nil {
		t.Error("a type that is not listed counts as discovered")
	}
}
