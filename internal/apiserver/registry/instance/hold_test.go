package instance_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/registry"
	"rik.dev/rik/internal/apiserver/registry/instance"
	"rik.dev/rik/internal/apiserver/registry/registrytest"
	"rik.dev/rik/internal/rpc/nodev1"
)

func post(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body)
}

func TestHold(t *testing.T) {
	t.Parallel()
	s := serve(t, "n1", func(*registrytest.FarEnd, *nodev1.OpenSession) *nodev1.SessionEnd { return &nodev1.SessionEnd{} })
	for path, want := range map[string]*nodev1.HoldSession{
		"suspend":              {Suspended: true},
		"suspend?toDisk=false": {Suspended: true},
		"suspend?toDisk=true":  {Suspended: true, ToDisk: true},
		"resume":               {},
	} {
		if code, body := post(t, s.url+"/"+s.name+"/"+path); code != http.StatusOK {
			t.Errorf("%s = %d %s", path, code, body)
		}
		open := <-s.node.Opened
		if !proto.Equal(open.GetHold(), want) || open.GetUid() == "" {
			t.Errorf("%s asked the node for %v, want %v", path, open, want)
		}
	}
	for path, why := range map[string]string{"suspend?toDisk=floppy": "true or false", "resume?toDisk=true": "leave toDisk out"} {
		if code, body := post(t, s.url+"/"+s.name+"/"+path); code != http.StatusBadRequest || !strings.Contains(body, why) || len(s.node.Opened) > 0 {
			t.Errorf("%s = %d %s, %d questions to the node, want 400 with %q", path, code, body, len(s.node.Opened), why)
		}
	}
}

func TestHoldRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		node string
		says *nodev1.SessionEnd // nil: the node disconnects without an answer
		code int
		text string
	}{
		"not bound":     {"", nil, http.StatusConflict, "it has no node yet"},
		"not connected": {"n2", nil, http.StatusServiceUnavailable, "is not connected"},
		"not running":   {"n1", &nodev1.SessionEnd{Error: "instance is not running", Problem: nodev1.Problem_PROBLEM_NOT_RUNNING}, http.StatusConflict, "it is not running"},
		"unknown":       {"n1", &nodev1.SessionEnd{Error: "no such instance", Problem: nodev1.Problem_PROBLEM_UNKNOWN_INSTANCE}, http.StatusConflict, "does not have the instance yet"},
		"unsupported":   {"n1", &nodev1.SessionEnd{Error: "no freezer", Problem: nodev1.Problem_PROBLEM_UNSUPPORTED}, http.StatusBadRequest, "cannot suspend or resume"},
		"lost":          {"n1", &nodev1.SessionEnd{Error: "it is made anew", Problem: nodev1.Problem_PROBLEM_LOST}, http.StatusConflict, "it is made anew"},
		"anything else": {"n1", &nodev1.SessionEnd{Error: "the VMM burns"}, http.StatusInternalServerError, "the VMM burns"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, tc.node, func(*registrytest.FarEnd, *nodev1.OpenSession) *nodev1.SessionEnd { return tc.says })
			code, body := post(t, s.url+"/"+s.name+"/suspend")
			if code != tc.code || !strings.Contains(body, tc.text) {
				t.Errorf("suspend = %d %s, want %d with %q", code, body, tc.code, tc.text)
			}
		})
	}
}

// TestHoldOfNoMore: an instance that has ended or is being deleted is refused without a request
// to its node.
func TestHoldOfNoMore(t *testing.T) {
	t.Parallel()
	for _, phase := range []rikv1alpha1.InstancePhase{rikv1alpha1.InstanceCompleted, rikv1alpha1.InstanceFailed} {
		t.Run(string(phase), func(t *testing.T) {
			t.Parallel()
			node := &registrytest.Node{Opened: make(chan *nodev1.OpenSession, 1)}
			f := setup(t, registry.Config{Sessions: node, Authorizer: registrytest.Allow("ann", "create")})
			i := f.create(t, of("web"))
			bound, err := f.direct.Get(t.Context(), "team", i.Name)
			if err != nil {
				t.Fatal(err)
			}
			bound.Spec.NodeName = "n1"
			bound.Status.Phase = phase
			if _, err := f.direct.Update(t.Context(), bound); err != nil {
				t.Fatal(err)
			}
			refused := held(t, f, f.Instances.Suspend, i.Name)
			if !strings.Contains(refused, "does not run any more") || len(node.Opened) != 0 {
				t.Errorf("suspend said %q, %d questions to the node", refused, len(node.Opened))
			}
		})
	}
	t.Run("deleted", func(t *testing.T) {
		t.Parallel()
		node := &registrytest.Node{Opened: make(chan *nodev1.OpenSession, 1)}
		f := setup(t, registry.Config{Sessions: node})
		i := f.create(t, of("web"))
		bound, err := f.direct.Get(t.Context(), "team", i.Name)
		if err != nil {
			t.Fatal(err)
		}
		bound.Spec.NodeName = "n1"
		if _, err := f.direct.Update(t.Context(), bound); err != nil {
			t.Fatal(err)
		}
		if _, _, err := f.Instances.Instance.Delete(f.user, i.Name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if refused := held(t, f, f.Instances.Resume, i.Name); !strings.Contains(refused, "being deleted") || len(node.Opened) != 0 {
			t.Errorf("resume said %q, %d questions to the node", refused, len(node.Opened))
		}
	})
}

// refusal stores the error of a handler.
type refusal struct {
	responder
	text *string
}

func (r refusal) Error(err error) { *r.text = err.Error() }

func held(t *testing.T, f *fixture, h *instance.Hold, name string) string {
	t.Helper()
	var text string
	handler, err := h.Connect(f.user, name, nil, refusal{text: &text})
	if err != nil {
		t.Fatal(err)
	}
	handler.ServeHTTP(nil, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody))
	return text
}
