package outage

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

var codecs = serializer.NewCodecFactory(func() *runtime.Scheme {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, metav1.Unversioned)
	return s
}())

const internalError = `{"kind":"Status","message":"rpc error: code = Unknown desc = failed to connect to user=rik database=rik: 10.0.0.5:5432: connection refused","code":500}`

func ask(t *testing.T, h http.Handler, info request.RequestInfo) (*httptest.ResponseRecorder, metav1.Status) {
	t.Helper()
	r := httptest.NewRequestWithContext(request.WithRequestInfo(t.Context(), &info), http.MethodGet, "/api/v1/x", nil)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	var status metav1.Status
	_ = json.Unmarshal(w.Body.Bytes(), &status) // the body may not be a Status
	return w, status
}

var object = request.RequestInfo{IsResourceRequest: true, Verb: "get", APIVersion: "v1", Resource: "configmaps"}

func answers(code int, body string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	})
}

func TestInternalsAreNotShown(t *testing.T) {
	t.Parallel()
	m := New(Config{Logger: slog.New(slog.DiscardHandler)})
	for name, tc := range map[string]struct {
		code int
		body string
		want int
		says string
	}{
		"a refused connection": {500, internalError, 503, "datastore did not answer"},
		"a used up quota":      {500, `{"message":"etcdserver: mvcc: database space exceeded"}`, 507, "--datastore-quota"},
		"another error":        {500, `{"message":"programmer error"}`, 500, "programmer error"},
		"a large error":        {500, strings.Repeat("x", maxHeld+1), 500, "xxx"},
		"no error":             {200, internalError, 200, "10.0.0.5"},
		"not found":            {404, "gone", 404, "gone"},
	} {
		w, _ := ask(t, m.Wrap(answers(tc.code, tc.body), codecs), object)
		if w.Code != tc.want || !strings.Contains(w.Body.String(), tc.says) {
			t.Errorf("%s: %d %.200q, want %d saying %q", name, w.Code, w.Body, tc.want, tc.says)
		}
		if tc.want == 503 && (w.Header().Get("Retry-After") == "" || strings.Contains(w.Body.String(), "5432")) {
			t.Errorf("%s: %v %q, want Retry-After and no internals", name, w.Header(), w.Body)
		}
	}
}

func TestAnOutageEndsRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var down atomic.Bool
		m := New(Config{
			Probe: func(ctx context.Context) error {
				if down.Load() {
					<-ctx.Done() // like a network that drops packets
				}
				return ctx.Err()
			},
			Datastore: "postgres at db:5432/rik", Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()
		hangs := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte(r.Context().Err().Error()))
		}), codecs)

		time.Sleep(time.Minute)
		down.Store(true)
		began := time.Now()
		w, status := ask(t, hangs, object)
		if took := time.Since(began); w.Code != 503 || took > 30*time.Second || !strings.Contains(status.Message, "datastore") {
			t.Errorf("a request that waits: %d %q after %s, want 503 within 30s", w.Code, status.Message, took)
		}
		w, status = ask(t, m.Wrap(answers(200, "fine"), codecs), object)
		if w.Code != 503 || w.Header().Get("Retry-After") != "1" || !strings.Contains(status.Message, "datastore has not answered for") || strings.Contains(w.Body.String(), "5432") {
			t.Errorf("during an outage: %d %v %q", w.Code, w.Header(), status.Message)
		}
		for what, info := range map[string]request.RequestInfo{"health": {Path: "/readyz"}} {
			if w, _ := ask(t, m.Wrap(answers(200, "fine"), codecs), info); w.Code != 200 {
				t.Errorf("%s during an outage: %d, want 200", what, w.Code)
			}
		}
		down.Store(false)
		time.Sleep(time.Minute)
		if w, _ := ask(t, m.Wrap(answers(200, "fine"), codecs), object); w.Code != 200 {
			t.Errorf("after the outage: %d", w.Code)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if text := log.String(); strings.Count(text, "level=ERROR") != 1 || !strings.Contains(text, "db:5432") || !strings.Contains(text, "answers again") {
			t.Errorf("the log says:\n%s", text)
		}
	})
}
