package syncer_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// transportFunc is a function that answers requests, or passes them on.
type transportFunc func(next http.RoundTripper, r *http.Request) (*http.Response, error)

func (f transportFunc) of(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return transport{f, next} })
	return config
}

type transport struct {
	answer transportFunc
	next   http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t.answer(t.next, r) }

func answered(r *http.Request, code int, body []byte) *http.Response {
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), Request: r,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, ContentLength: int64(len(body)),
	}
}

// A cluster may refuse the same object with a different text each time, for example if a webhook
// numbers its answers. The syncer does not repeat the request endlessly, and the reported text
// contains no credentials.
func TestRefusalInOtherWordsEachTime(t *testing.T) {
	t.Parallel()
	k := startKCP(t)
	physical, down := downstream(t)
	const token = "c4n4ry-5ecret"
	var refusals atomic.Int32
	config := transportFunc(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodPatch || !strings.HasSuffix(r.URL.Path, "/configmaps/refused") {
			return next.RoundTrip(r)
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		_, wish, _ := strings.Cut(string(body), `"wish":"`)
		wish, _, _ = strings.Cut(wish, `"`)
		raw, err := json.Marshal(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": http.StatusForbidden,
			"message": fmt.Sprintf("request %d of %s, with wish %s", refusals.Add(1), token, wish)})
		return answered(r, http.StatusForbidden, raw), err
	}).of(physical.Rest())
	// The server does not check the token here, because the client certificate identifies the
	// user.
	config.BearerToken = token
	k.register("east", "configmaps")
	k.namespace("words")
	k.sync("east", config)
	create(t, k.objects, configMaps, configMap("words", "refused", "east", map[string]string{"wish": "first"}))
	said := func(part string) func(*unstructured.Unstructured) error {
		return func(o *unstructured.Unstructured) error {
			text := o.GetAnnotations()[workloadv1alpha1.ProblemAnnotationPrefix+"east"]
			if !strings.HasPrefix(text, "Refused: ") || !strings.Contains(text, part) {
				return fmt.Errorf("the problem is %q, want %q", text, part)
			}
			if strings.Contains(text, token) {
				t.Errorf("the problem %q holds the token", text)
			}
			return nil
		}
	}
	has(t, k.objects, configMaps, "words", "refused", said("wish first"))
	before := has(t, k.objects, configMaps, "words", "refused", anyhow).GetResourceVersion()
	// During all this time, nothing about the object changes.
	for i := range 20 {
		name := fmt.Sprintf("other%d", i)
		create(t, k.objects, configMaps, configMap("words", name, "east", nil))
		has(t, down, configMaps, k.downNamespace("east", "words"), name, anyhow)
	}
	if now := has(t, k.objects, configMaps, "words", "refused", anyhow).GetResourceVersion(); now != before {
		t.Errorf("it was written again: version %s, then %s, after %d refusals", before, now, refusals.Load())
	}
	// The refusal of a new desired object is reported at once.
	patch(t, k.objects, configMaps, "words", "refused", `{"data":{"wish":"second"}}`)
	has(t, k.objects, configMaps, "words", "refused", said("wish second"))
}

// If an extension server is down, as often happens in clusters, the types of other groups are
// still copied.
func TestOtherGroupGivesNoAccount(t *testing.T) {
	t.Parallel()
	k := startKCP(t)
	physical, down := downstream(t)
	config := staleGroup("metrics.k8s.io", physical.Rest())
	k.register("east", "configmaps")
	k.namespace("metrics")
	k.sync("east", config)
	create(t, k.objects, configMaps, configMap("metrics", "carried", "east", nil))
	has(t, down, configMaps, k.downNamespace("east", "metrics"), "carried", anyhow)
}

// staleGroup adds to discovery one more group whose types the server cannot return.
func staleGroup(group string, config *rest.Config) *rest.Config {
	return transportFunc(func(next http.RoundTripper, r *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		if err != nil || r.URL.Path != "/apis" {
			return answer, err
		}
		defer answer.Body.Close()
		var list map[string]any
		if err := json.NewDecoder(answer.Body).Decode(&list); err != nil {
			return nil, err
		}
		items, _ := list["items"].([]any)
		list["items"] = append(items, map[string]any{"metadata": map[string]any{"name": group},
			"versions": []any{map[string]any{"version": "v1beta1", "freshness": "Stale"}}})
		raw, err := json.Marshal(list)
		changed := answered(r, answer.StatusCode, raw)
		changed.Header.Set("Content-Type", answer.Header.Get("Content-Type"))
		return changed, err
	}).of(config)
}
