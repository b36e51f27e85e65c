package strict_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"rik.dev/rik/internal/apiserver/apis/rik/install"
	"rik.dev/rik/internal/apiserver/filters/strict"
)

// init fills the scheme, which has no lock, before any test runs.
func init() { install.Install(legacyscheme.Scheme) }

func TestWrapForcesTheParameter(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, group, verb, query, want string
		resource                       bool
	}{
		{"not asked", "rik.dev", "create", "", "Strict", true},
		{"asked to ignore", "rik.dev", "update", "fieldValidation=Ignore", "Strict", true},
		{"asked twice", "rik.dev", "patch", "fieldValidation=Warn&fieldValidation=Ignore", "Strict", true},
		{"other group", "apps", "create", "fieldValidation=Warn", "Warn", true},
		{"read", "rik.dev", "get", "", "", true},
		{"delete", "rik.dev", "delete", "", "", true},
		{"not a resource", "rik.dev", "create", "", "", false},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			handler := wrap(func(_ http.ResponseWriter, r *http.Request) { got = r.URL.Query()["fieldValidation"] })
			original := infoRequest(tc.verb, tc.group, "/x?"+tc.query, tc.resource, nil)
			handler.ServeHTTP(httptest.NewRecorder(), original)
			if strings.Join(got, ",") != tc.want {
				t.Errorf("fieldValidation = %v, want %q", got, tc.want)
			}
			if original.URL.RawQuery != tc.query {
				t.Errorf("the original request changed to %q", original.URL.RawQuery)
			}
		})
	}
}

func wrap(next http.HandlerFunc) http.Handler {
	return strict.Wrap(next, strict.Config{Groups: []string{"rik.dev"}, Scheme: legacyscheme.Scheme, Serializer: legacyscheme.Codecs})
}

func infoRequest(verb, group, url string, resource bool, body io.Reader) *http.Request {
	r := httptest.NewRequest(http.MethodPost, url, body)
	return r.WithContext(request.WithRequestInfo(r.Context(), &request.RequestInfo{
		IsResourceRequest: resource, APIGroup: group, APIVersion: "v1alpha1", Verb: verb, Resource: "workloads",
	}))
}

func TestWrapChecksApply(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: rik.dev/v1alpha1\nkind: Workload\nmetadata: {name: w}\n"
	tests := []struct {
		name, body, says string
	}{
		{"good", head + "spec: {replicas: 3}\n", ""},
		{"unknown field", head + "spec: {replica: 3}\n", `unknown field "spec.replica"`},
		{"duplicate field", head + "spec: {replicas: 3, replicas: 4}\n", "replicas"},
		{"not yaml", "\x00{", "yaml"},
		{"unknown kind is the server's to refuse", "apiVersion: rik.dev/v1alpha1\nkind: Nothing\n", ""},
		{"too long is the server's to refuse", head + "# " + strings.Repeat("x", 4<<20), ""},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var passed []byte
			handler := wrap(func(_ http.ResponseWriter, r *http.Request) { passed, _ = io.ReadAll(r.Body) })
			r := infoRequest("patch", "rik.dev", "/x", true, strings.NewReader(tc.body))
			r.Header.Set("Content-Type", "application/apply-patch+yaml; charset=utf-8")
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if tc.says == "" {
				if !bytes.Equal(passed, []byte(tc.body)) {
					t.Errorf("passed on %d bytes with status %d, want all %d", len(passed), w.Code, len(tc.body))
				}
				return
			}
			if w.Code != http.StatusBadRequest || passed != nil || !strings.Contains(w.Body.String(), strings.ReplaceAll(tc.says, `"`, `\"`)) {
				t.Errorf("answer = %d %s, want 400 saying %s", w.Code, w.Body, tc.says)
			}
		})
	}
}

// TestWrapNamesTheFields sends values that cannot be decoded.
func TestWrapNamesTheFields(t *testing.T) {
	t.Parallel()
	const (
		head  = "apiVersion: rik.dev/v1alpha1\nkind: Workload\nmetadata: {name: w}\n"
		merge = "application/merge-patch+json"
		patch = "application/json-patch+json"
	)
	tests := []struct {
		name, verb, mediaType, body string
		fields                      []string // none if the document is passed on
	}{
		{"create in YAML", "create", "application/yaml", head + "spec: {replicas: 99999999999, priority: high}\n", []string{"spec.priority", "spec.replicas"}},
		{"create in JSON", "create", "application/json; charset=utf-8",
			`{"apiVersion":"rik.dev/v1alpha1","kind":"Workload","spec":{"containers":[{"args":[1],"resources":{"limits":{"memory":"abc"}}}]}}`,
			[]string{"spec.containers[0].args[0]", "spec.containers[0].resources.limits.memory"}},
		{"create without a type or a kind", "create", "", `{"spec":{"replicas":"many"}}`, []string{"spec.replicas"}},
		{"update", "update", "application/json", `{"metadata":{"labels":{"a":1}}}`, []string{"metadata.labels.a"}},
		{"apply", "patch", "application/apply-patch+yaml", head + "spec: {replicas: many}\n", []string{"spec.replicas"}},
		{"merge", "patch", merge, `{"spec":{"priority":null,"replicas":"many"}}`, []string{"spec.replicas"}},
		{"strategic merge", "patch", "application/strategic-merge-patch+json", `{"spec":{"containers":[{"$patch":"delete","name":"a"},{"name":5}]}}`, []string{"spec.containers[1].name"}},
		{"JSON patch", "patch", patch, `[{"op":"test","path":"/spec/replicas","value":"x"},{"op":"add","path":"/spec/containers/0/resources/limits/memory","value":"abc"}]`,
			[]string{"spec.containers[0].resources.limits.memory"}},
		{"kind that is no text", "create", "application/json", `{"apiVersion":"rik.dev/v1alpha1","kind":5}`, []string{"kind"}},
		{"good", "create", "application/json", `{"spec":{"replicas":3}}`, nil},
		{"good patch", "patch", patch, `[{"op":"remove","path":"/spec/replicas"}]`, nil},
		{"a type of elsewhere", "update", "application/json", `{"apiVersion":"autoscaling/v1","kind":"Scale","spec":{"replicas":2}}`, nil},
		{"no JSON", "create", "application/json", `{`, nil},
		{"protobuf", "create", "application/vnd.kubernetes.protobuf", `{"spec":1}`, nil},
		{"no media type", "create", ";", `{"spec":1}`, nil},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var passed []byte
			handler := wrap(func(_ http.ResponseWriter, r *http.Request) { passed, _ = io.ReadAll(r.Body) })
			r := infoRequest(tc.verb, "rik.dev", "/x", true, strings.NewReader(tc.body))
			r.Header.Set("Content-Type", tc.mediaType)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if tc.fields == nil {
				if string(passed) != tc.body {
					t.Errorf("passed on %q with status %d: %s, want all", passed, w.Code, w.Body)
				}
				return
			}
			var status metav1.Status
			if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil || status.Details == nil {
				t.Fatalf("answer = %d %s (%v)", w.Code, w.Body, err)
			}
			var fields []string
			for _, cause := range status.Details.Causes {
				fields = append(fields, cause.Field)
				if !strings.Contains(cause.Message, "must be") {
					t.Errorf("%s: %q does not say what is expected", cause.Field, cause.Message)
				}
			}
			if diff := cmp.Diff(tc.fields, fields); diff != "" || w.Code != http.StatusUnprocessableEntity || passed != nil {
				t.Errorf("answer = %d with fields (-want +got):\n%s", w.Code, diff)
			}
		})
	}
}
