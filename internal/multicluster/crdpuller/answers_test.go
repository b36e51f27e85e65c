package crdpuller_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/multicluster/crdpuller"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/poll"
)

// front is a proxy for a real server that changes some of its responses. It simulates other
// versions of the server, and failures.
type front struct {
	config *rest.Config

	mu     sync.Mutex
	change func(*http.Response) error
	asked  []string
}

func newFront(t *testing.T, change func(*http.Response) error) *front {
	t.Helper()
	behind := kube.Shared(t).Rest()
	transport, err := rest.TransportFor(behind)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(behind.Host)
	if err != nil {
		t.Fatal(err)
	}
	f := &front{change: change}
	server := httptest.NewServer(&httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Del("Accept-Encoding")
		},
		ModifyResponse: f.modify,
	})
	t.Cleanup(server.Close)
	f.config = &rest.Config{Host: server.URL}
	return f
}

func (f *front) modify(r *http.Response) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, r.Request.URL.Path)
	return f.change(r)
}

// from changes how the following requests are answered.
func (f *front) from(change func(*http.Response) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.change, f.asked = change, nil
}

func (f *front) wasAsked(path string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.asked, path)
}

func unchanged(*http.Response) error { return nil }

// answers returns a status instead of the content of a path.
func answers(status int, paths ...string) func(*http.Response) error {
	return func(r *http.Response) error {
		if slices.Contains(paths, r.Request.URL.Path) {
			r.StatusCode, r.Body = status, io.NopCloser(strings.NewReader("{}"))
			r.Header = http.Header{"Content-Type": {"application/json"}}
			r.ContentLength = -1
		}
		return nil
	}
}

// rewrites changes the text of responses below a path.
func rewrites(below string, change func([]byte) []byte) func(*http.Response) error {
	return func(r *http.Response) error {
		if !strings.HasPrefix(r.Request.URL.Path, below) {
			return nil
		}
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(change(raw))), -1
		r.Header.Del("Content-Length")
		return nil
	}
}

// TestOpenAPIVersion2 pulls from a server without version 3. Version 2 contains no defaults.
// Everything else is the same.
func TestOpenAPIVersion2(t *testing.T) {
	f := newFront(t, answers(http.StatusNotFound, "/openapi/v3"))
	for _, name := range []string{"deployments.apps", "pods", "services", "ingresses.networking.k8s.io", "horizontalpodautoscalers.autoscaling"} {
		second, third := only(t, pull(t, f.config, name)), only(t, pull(t, kube.Shared(t).Rest(), name))
		got, want := outline(second), outline(third)
		if !maps.Equal(got, want) {
			for path := range want {
				if got[path] != want[path] {
					t.Errorf("%s%s: version 2 has %q, version 3 has %q", name, path, got[path], want[path])
				}
			}
			t.Errorf("%s: version 2 has %d fields, version 3 has %d", name, len(got), len(want))
		}
	}
	protocol := schemaOf(t, only(t, pull(t, f.config, "services")), "spec", "ports", "[]", "protocol")
	if protocol.Default == nil || string(protocol.Default.Raw) != `"TCP"` {
		t.Errorf("a port's protocol defaults to %v, want TCP", protocol.Default)
	}
	if !f.wasAsked("/openapi/v2") {
		t.Error("version 2 was not asked for")
	}
}

// outline returns every field with its type, and the keys of its list items.
func outline(crd *apiextensionsv1.CustomResourceDefinition) map[string]string {
	fields := map[string]string{}
	var walk func(path string, p *apiextensionsv1.JSONSchemaProps)
	walk = func(path string, p *apiextensionsv1.JSONSchemaProps) {
		said := append([]string{p.Type, p.Format}, p.XListMapKeys...)
		if p.XIntOrString {
			said = append(said, "int-or-string")
		}
		if p.XPreserveUnknownFields != nil {
			said = append(said, "any")
		}
		if p.XListType != nil {
			said = append(said, *p.XListType)
		}
		fields[path] = strings.Join(said, " ")
		for name, child := range p.Properties {
			walk(path+"."+name, &child)
		}
		if p.Items != nil {
			walk(path+"[*]", p.Items.Schema)
		}
		if p.AdditionalProperties != nil && p.AdditionalProperties.Schema != nil {
			walk(path+"[*]", p.AdditionalProperties.Schema)
		}
	}
	walk("", crd.Spec.Versions[0].Schema.OpenAPIV3Schema)
	return fields
}

// TestChangedModelIsNoticed pulls before and after an upgrade that adds a field to Deployments.
// Unchanged documents are not read again.
func TestChangedModelIsNoticed(t *testing.T) {
	f := newFront(t, unchanged)
	p := newPuller(t, f.config)
	specOf := func() apiextensionsv1.JSONSchemaProps {
		t.Helper()
		pulled, err := p.Pull(t.Context(), "deployments.apps")
		if err != nil {
			t.Fatal(err)
		}
		return schemaOf(t, only(t, pulled), "spec")
	}
	if _, ok := specOf().Properties["novel"]; ok {
		t.Fatal("the field is there before the upgrade")
	}
	f.from(unchanged)
	specOf()
	if f.wasAsked("/openapi/v3/apis/apps/v1") {
		t.Error("an unchanged document was read again")
	}
	hash := regexp.MustCompile(`hash=`)
	f.from(rewrites("/openapi/v3", func(raw []byte) []byte {
		raw = hash.ReplaceAll(raw, []byte("hash=upgraded-"))
		return bytes.ReplaceAll(raw, []byte(`"minReadySeconds":{`), []byte(`"novel":{"type":"string"},"minReadySeconds":{`))
	}))
	if _, ok := specOf().Properties["novel"]; !ok {
		t.Error("the field is not there after the upgrade")
	}
}

// TestNoAnswerIsAnError tests answers that must not count as a cluster without types.
func TestNoAnswerIsAnError(t *testing.T) {
	for name, change := range map[string]func(*http.Response) error{
		"not ready yet":      answers(http.StatusInternalServerError, "/readyz"),
		"first types hidden": answers(http.StatusNotFound, "/api", "/api/v1"),
		"all others hidden":  answers(http.StatusNotFound, "/apis"),
		"others forbidden":   answers(http.StatusForbidden, "/apis"),
		"others unavailable": answers(http.StatusServiceUnavailable, "/apis"),
		"a login page":       rewrites("/api", func([]byte) []byte { return []byte("<html>log in</html>") }),
		"an empty list":      rewrites("/apis", func([]byte) []byte { return []byte("{}") }),
		"a redirect": func(r *http.Response) error {
			r.StatusCode = http.StatusFound
			r.Header.Set("Location", "http://127.0.0.1:1"+r.Request.URL.Path)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFront(t, change)
			if pulled, err := newPuller(t, f.config).Pull(t.Context()); err == nil {
				t.Errorf("Pull() = %v of %d types, want an error", pulled.Unknown, len(pulled.CRDs))
			}
		})
	}
}

// TestOpenAPIFails tests that a failure of OpenAPI is a problem of every built-in type, and only
// of those.
func TestOpenAPIFails(t *testing.T) {
	c := kube.Shared(t)
	install(t, c, crdOf("gadgets", "openapi.example.dev", "Gadget", anyObject()))
	for name, change := range map[string]func(*http.Response) error{
		"index":    answers(http.StatusServiceUnavailable, "/openapi/v3"),
		"document": answers(http.StatusServiceUnavailable, "/openapi/v3/api/v1"),
		"nonsense": rewrites("/openapi/v3/api/v1", func([]byte) []byte { return []byte("[") }),
		"no model": rewrites("/openapi/v3/api/v1", func([]byte) []byte { return []byte("{}") }),
		"no path":  rewrites("/openapi/v3", func(raw []byte) []byte { return bytes.ReplaceAll(raw, []byte(`"api/v1"`), []byte(`"api/v0"`)) }),
		"too large": func(r *http.Response) error {
			if r.Request.URL.Path == "/openapi/v3/api/v1" {
				r.Body, r.ContentLength = io.NopCloser(io.LimitReader(spaces{}, 100<<20)), -1
				r.Header.Del("Content-Length")
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			pulled := pull(t, newFront(t, change).config, "services", "gadgets.openapi.example.dev")
			if got, want := names(pulled), []string{"gadgets.openapi.example.dev"}; !slices.Equal(got, want) {
				t.Errorf("pulled %v, want %v", got, want)
			}
			if len(pulled.Problems) != 1 || pulled.Problems[0].Resource.Resource != "services" {
				t.Errorf("problems %v, want one of services", pulled.Problems)
			}
		})
	}
}

// spaces is endless valid JSON without content.
type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// TestVersionWithoutAnswerHidesTheNext pulls from a group whose preferred version is down. The
// other version, which answers, must not count as the preferred one.
func TestVersionWithoutAnswerHidesTheNext(t *testing.T) {
	c := kube.Shared(t)
	install(t, c, crdOf("twins", "twice.example.dev", "Twin", anyObject()))
	brokenAPIService(t, c, "v2", "twice.example.dev")
	poll.Until(t, kube.Timeout, "both versions are unknown", func(ctx context.Context) error {
		pulled, err := newPuller(t, c.Rest()).Pull(ctx, "twins.twice.example.dev")
		if err != nil {
			return err
		}
		for _, version := range []string{"v1", "v2"} {
			if !slices.Contains(pulled.Unknown, schema.GroupVersion{Group: "twice.example.dev", Version: version}) || len(pulled.CRDs)+len(pulled.NotServed) > 0 {
				return fmt.Errorf("unknown %v, pulled %v, not served %v", pulled.Unknown, names(pulled), pulled.NotServed)
			}
		}
		return nil
	})
}

func TestTypesThatCannotBeWatched(t *testing.T) {
	pulled := pull(t, kube.Shared(t).Rest(), "componentstatuses")
	if len(pulled.CRDs) > 0 || len(pulled.Problems) != 1 || !errors.Is(pulled.Problems[0].Err, crdpuller.ErrNotWatchable) {
		t.Errorf("pulled %v with problems %v, want that it cannot be watched", names(pulled), pulled.Problems)
	}
}

func TestSkip(t *testing.T) {
	p, err := crdpuller.New(crdpuller.Config{
		Rest: kube.Shared(t).Rest(), Logger: slog.New(slog.DiscardHandler),
		Skip: func(gvk schema.GroupVersionKind) bool { return gvk.Group == "" || gvk.Kind == "Job" },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, asked := range [][]string{nil, {"services", "jobs.batch", "cronjobs.batch"}} {
		pulled, err := p.Pull(t.Context(), asked...)
		if err != nil {
			t.Fatal(err)
		}
		got := names(pulled)
		if slices.Contains(got, "jobs.batch") || slices.Contains(got, "services.core") || !slices.Contains(got, "cronjobs.batch") {
			t.Errorf("Pull(%v) = %v, want no jobs and no services", asked, got)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for name, config := range map[string]crdpuller.Config{
		"no connection":  {Logger: slog.New(slog.DiscardHandler)},
		"no logger":      {Rest: &rest.Config{}},
		"bad connection": {Logger: slog.New(slog.DiscardHandler), Rest: &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAFile: "/does/not/exist"}}},
	} {
		if _, err := crdpuller.New(config); err == nil {
			t.Errorf("New with %s succeeds", name)
		}
	}
}
