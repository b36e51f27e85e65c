package openapidoc_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"sync/atomic"
	"testing"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"rik.dev/rik/internal/apiserver/openapidoc"
)

const tag = "of-this-build"

// Thing is the type that the services serve.
type Thing struct{ Name string }

// OpenAPIModelName is the name under which the builders request its definition.
func (Thing) OpenAPIModelName() string { return "test.Thing" }

func service(path string) *restful.WebService {
	s := (&restful.WebService{}).Path(path).Produces(restful.MIME_JSON)
	s.Route(s.GET("/things").Operation("list"+path).Writes(Thing{}).Returns(http.StatusOK, "OK", Thing{}).To(func(*restful.Request, *restful.Response) {}))
	return s
}

// configs returns configurations that count how often the building of a document starts.
func configs(made *atomic.Int32) (*common.Config, *common.OpenAPIV3Config) {
	definitions := func(common.ReferenceCallback) map[string]common.OpenAPIDefinition {
		return map[string]common.OpenAPIDefinition{"test.Thing": {Schema: *spec.MapProperty(spec.StringProperty())}}
	}
	info := &spec.Info{InfoProps: spec.InfoProps{Title: "test", Version: "v0"}}
	named := func(name string) (string, spec.Extensions) {
		made.Add(1)
		return name, nil
	}
	return &common.Config{Info: info, GetDefinitions: definitions, GetDefinitionName: named},
		&common.OpenAPIV3Config{Info: info, GetDefinitions: definitions, GetDefinitionName: named}
}

func install(t *testing.T) (container *restful.Container, server http.Handler, made *atomic.Int32) {
	t.Helper()
	made = &atomic.Int32{}
	v2, v3 := configs(made)
	container = restful.NewContainer()
	container.Add(service("/apis/first/v1"))
	m := mux.NewPathRecorderMux("test")
	openapidoc.Install(container, m, openapidoc.Config{V2: v2, V3: v3, Tag: tag})
	return container, m, made
}

func get(t *testing.T, server http.Handler, target string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, target, nil)
	r.Header.Set("Accept", "application/json")
	server.ServeHTTP(w, r)
	return w
}

func decode[T any](t *testing.T, w *httptest.ResponseRecorder) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(w.Body.Bytes(), &v); w.Code != http.StatusOK || err != nil {
		t.Fatalf("status %d, %v: %s", w.Code, err, w.Body)
	}
	return v
}

func TestDocumentsAreMadeWhenAskedFor(t *testing.T) {
	t.Parallel()
	container, server, made := install(t)
	container.Add(service("/apis/later/v1"))
	index := decode[handler3.OpenAPIV3Discovery](t, get(t, server, "/openapi/v3"))
	if len(index.Paths) != 2 {
		t.Errorf("the index names %v, want both services", index.Paths)
	}
	if n := made.Load(); n != 0 {
		t.Fatalf("documents were begun %d times for the index, want none", n)
	}
	for name, place := range index.Paths {
		w := get(t, server, place.ServerRelativeURL)
		document := decode[struct {
			Paths map[string]any `json:"paths"`
		}](t, w)
		if _, ok := document.Paths["/"+name+"/things"]; !ok || len(document.Paths) != 1 {
			t.Errorf("the document of %s is of %v", name, document.Paths)
		}
		if w.Header().Get("Cache-Control") != "public, immutable" || w.Header().Get("Expires") == "" {
			t.Errorf("the document by its tag has %v, want it to be kept", w.Header())
		}
	}
	if made.Load() == 0 {
		t.Error("documents came from nowhere")
	}
	swagger := decode[spec.Swagger](t, get(t, server, "/openapi/v2"))
	if len(swagger.Paths.Paths) != 2 {
		t.Errorf("the document of version 2 is of %v, want both services", swagger.Paths.Paths)
	}
}

// TestSameAsKubernetes: except for the hash, the documents are the same as those of Kubernetes'
// own installation.
func TestSameAsKubernetes(t *testing.T) {
	t.Parallel()
	container, server, _ := install(t)
	v2, v3 := configs(&atomic.Int32{})
	theirs := mux.NewPathRecorderMux("theirs")
	routes.OpenAPI{Config: v2}.InstallV2(container, theirs)
	routes.OpenAPI{V3Config: v3}.InstallV3(container, theirs)
	want := decode[handler3.OpenAPIV3Discovery](t, get(t, theirs, "/openapi/v3"))
	have := decode[handler3.OpenAPIV3Discovery](t, get(t, server, "/openapi/v3"))
	if len(have.Paths) != len(want.Paths) || len(want.Paths) == 0 {
		t.Fatalf("the index names %v, want %v", have.Paths, want.Paths)
	}
	targets := []string{"/openapi/v2"}
	for name, place := range want.Paths {
		mine, err := url.Parse(have.Paths[name].ServerRelativeURL)
		if err != nil {
			t.Fatal(err)
		}
		its, err := url.Parse(place.ServerRelativeURL)
		if err != nil || mine.Path != its.Path || mine.Query().Get("hash") != tag {
			t.Errorf("%s is at %s, want %s with our tag (%v)", name, mine, its, err)
		}
		targets = append(targets, its.Path)
		// The digest of a document is also a valid hash, so a cached URL still works.
		if w := get(t, server, place.ServerRelativeURL); w.Code != http.StatusOK {
			t.Errorf("%s: status %d", place.ServerRelativeURL, w.Code)
		}
	}
	for _, target := range targets {
		mine, its := get(t, server, target), get(t, theirs, target)
		if mine.Code != its.Code || mine.Body.String() != its.Body.String() || mine.Header().Get("Etag") != its.Header().Get("Etag") {
			t.Errorf("%s: status %d and %d, or another body", target, mine.Code, its.Code)
		}
		if !reflect.DeepEqual(mine.Header()["Content-Type"], its.Header()["Content-Type"]) {
			t.Errorf("%s: %v, want %v", target, mine.Header(), its.Header())
		}
	}
}

// TestHashOfAnotherBuild: a request with another build's hash is redirected to this build's
// document, which has another hash.
func TestHashOfAnotherBuild(t *testing.T) {
	t.Parallel()
	_, server, _ := install(t)
	w := get(t, server, "/openapi/v3/apis/first/v1?hash=of-another-build")
	if w.Code != http.StatusMovedPermanently || w.Header().Get("Cache-Control") != "" {
		t.Fatalf("status %d, %v, want the way to this build's document", w.Code, w.Header())
	}
	if w := get(t, server, w.Header().Get("Location")); w.Code != http.StatusOK {
		t.Errorf("there: status %d", w.Code)
	}
}

// TestRefusalIsNotKept: a refusal is not cached, because the next client may request a
// supported format.
func TestRefusalIsNotKept(t *testing.T) {
	t.Parallel()
	_, server, _ := install(t)
	r := httptest.NewRequest(http.MethodGet, "/openapi/v3/apis/first/v1?hash="+tag, nil)
	r.Header.Set("Accept", "image/png")
	w := httptest.NewRecorder()
	server.ServeHTTP(w, r)
	if w.Code != http.StatusNotAcceptable || w.Header().Get("Cache-Control") != "" || w.Header().Get("Expires") != "" {
		t.Errorf("status %d, %v, want a refusal that is not cached", w.Code, w.Header())
	}
}
