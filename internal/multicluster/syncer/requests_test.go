package syncer_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// writeRecorder records the writes of a syncer on both sides to objects of one type, as lines like "up
// patch web/status". It includes refused writes, because they cost a server as much.
type writeRecorder struct {
	resource string

	mu sync.Mutex
	// lines is guarded by mu.
	lines []string
}

// of returns a configuration whose requests are recorded under the name of a side.
func (l *writeRecorder) of(side string, config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &noted{writes: l, side: side, next: next}
	})
	return config
}

type noted struct {
	writes *writeRecorder
	side   string
	next   http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (n *noted) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := n.next.RoundTrip(request)
	_, object, found := strings.Cut(request.URL.Path, "/"+n.writes.resource+"/")
	if !found || request.Method == http.MethodGet {
		return response, err
	}
	line := n.side + " " + strings.ToLower(request.Method) + " " + object
	if err == nil && response.StatusCode >= http.StatusBadRequest {
		line += fmt.Sprint(" ", response.StatusCode)
	}
	n.writes.mu.Lock()
	defer n.writes.mu.Unlock()
	n.writes.lines = append(n.writes.lines, line)
	return response, err
}

// take returns the lines since the last call, sorted.
func (l *writeRecorder) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	l.lines = nil
	slices.Sort(lines)
	return lines
}

// life takes Deployments through their lifecycle. It changes all of them at once, so that caches
// are out of date.
type life struct {
	t     *testing.T
	up    *kcp
	down  dynamic.Interface
	there string
	*writeRecorder
	names []string
	stage int
}

const sentinel = "sentinel"

func startLife(t *testing.T) *life {
	k, down := downstream(t)
	up := startKCP(t)
	up.publishDeployments(k.Rest())
	up.register("thrifty", "deployments.apps")
	up.namespace("team")
	l := &life{t: t, up: up, down: down, there: up.downNamespace("thrifty", "team"), writeRecorder: &writeRecorder{resource: "deployments"}}
	config := up.configOf("thrifty", k.Rest())
	config.Upstream, config.Downstream = l.of("up", config.Upstream), l.of("down", config.Downstream)
	run(t, config)
	create(t, up.objects, deployments, deployment(t, "team", sentinel, "thrifty"))
	for i := range 20 {
		l.names = append(l.names, fmt.Sprintf("d%02d", i))
	}
	return l
}

// costs does something to every object. When nothing changes any more, it compares the writes of
// the syncer.
func (l *life) costs(what string, step func(name string), reached func(name string), want ...string) {
	l.t.Helper()
	var all []string
	for _, name := range l.names {
		step(name)
		for _, line := range want {
			all = append(all, strings.Replace(line, "NAME", name, 1))
		}
	}
	for _, name := range l.names {
		reached(name)
	}
	l.rests()
	got := slices.DeleteFunc(l.take(), func(line string) bool { return strings.Contains(line, sentinel) })
	slices.Sort(all)
	if diff := cmp.Diff(strings.Join(all, "\n"), strings.Join(got, "\n")); diff != "" {
		l.t.Errorf("%s: the writes (-want +got):\n%s", what, diff)
	}
}

// rests changes the sentinel object, and waits until the change is downstream and its status is
// upstream. The syncer has then processed all earlier events.
func (l *life) rests() {
	l.t.Helper()
	l.stage++
	patch(l.t, l.up.objects, deployments, "team", sentinel, fmt.Sprintf(`{"spec":{"replicas":%d}}`, l.stage))
	has(l.t, l.down, deployments, l.there, sentinel, field(l.stage, "spec", "replicas"))
	patch(l.t, l.down, deployments, l.there, sentinel, fmt.Sprintf(`{"status":{"replicas":%d}}`, l.stage), "status")
	has(l.t, l.up.objects, deployments, "team", sentinel, field(l.stage, "status", "replicas"))
}

// TestWritesOfALife tests the number of writes on both sides for a Deployment, from its creation
// to its deletion. No write is refused, and no write repeats known content.
func TestWritesOfALife(t *testing.T) {
	l := startLife(t)
	above := func(want func(*unstructured.Unstructured) error) func(string) {
		return func(name string) { has(t, l.up.objects, deployments, "team", name, want) }
	}
	below := func(want func(*unstructured.Unstructured) error) func(string) {
		return func(name string) { has(t, l.down, deployments, l.there, name, want) }
	}
	changeAbove := func(text string) func(string) {
		return func(name string) { patch(t, l.up.objects, deployments, "team", name, text) }
	}
	statusBelow := func(text string) func(string) {
		return func(name string) { patch(t, l.down, deployments, l.there, name, text, "status") }
	}
	l.costs("made", func(name string) {
		create(t, l.up.objects, deployments, deployment(t, "team", name, "thrifty"))
	}, below(image("web:1")), "up patch NAME", "down patch NAME")
	l.costs("changed", changeAbove(`{"spec":{"replicas":3}}`), below(field(3, "spec", "replicas")), "down patch NAME")
	l.costs("status", statusBelow(`{"status":{"replicas":3,"observedGeneration":2}}`), above(field(3, "status", "replicas")), "up patch NAME/status")
	l.costs("what is not carried", func(name string) {
		patch(t, l.up.objects, deployments, "team", name, `{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}"}}}`)
	}, above(anyhow))
	l.costs("deleted", func(name string) { remove(t, l.up.objects, deployments, "team", name) },
		func(name string) { hasNot(t, l.up.objects, deployments, "team", name) }, "down delete NAME", "up patch NAME")
}
