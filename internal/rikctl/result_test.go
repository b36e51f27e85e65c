package rikctl

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/config"
	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/testkit/served"
)

// document fails the test unless the standard output is exactly one document of JSON with these
// values. The document must not have those that are nil.
func (r result) document(t *testing.T, want map[string]any) {
	t.Helper()
	var got map[string]any
	if err := json.Unmarshal([]byte(r.out), &got); err != nil {
		t.Fatalf("the standard output is not one document: %v\nout: %s\nerr: %s", err, r.out, r.err)
	}
	if text, failed := got["error"].(string); failed {
		// The next step, and the form for people, are only on the standard error.
		if first, _, _ := strings.Cut(text, "\n"); !strings.Contains(r.err, first) {
			t.Errorf("the error is %q in the document, and on the standard error\n%s", text, r.err)
		}
	}
	for key := range got {
		if _, wanted := want[key]; !wanted {
			delete(got, key)
		}
	}
	for key, value := range want {
		if value == nil {
			delete(want, key) // it must not be there
		}
	}
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	clear(want)
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the document (-want +got):\n%s\nerr: %s", diff, r.err)
	}
}

// TestEveryWaitHasAResult: a command with a timeout or a wait prints a result for scripts.
func TestEveryWaitHasAResult(t *testing.T) {
	t.Parallel()
	root := New(genericiooptions.NewTestIOStreamsDiscard(), config.Source{Getenv: func(string) string { return "" }})
	var waits []string
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		flags := c.LocalNonPersistentFlags()
		if c.Runnable() && (flags.Lookup("timeout") != nil || flags.Lookup("wait") != nil) {
			waits = append(waits, c.Name())
			if flags.Lookup("output") == nil {
				t.Errorf("%q waits, and has no --output", c.CommandPath())
			}
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(root)
	for _, name := range []string{"drain", "status", "wait", "delete", "scale", "suspend", "resume", "tenant", "unregister"} {
		if !slices.Contains(waits, name) {
			t.Errorf("%s is not among the commands that wait: %v", name, waits)
		}
	}
}

func TestServerDrainResult(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	node, other := s.drainable(t)
	web := []map[string]any{{"namespace": s.namespace, "name": "web-1"}}
	r := s.do(t, "drain", node, "--dry-run", "-o", "json")
	r.check(t, clierror.ExitOK)
	r.document(t, map[string]any{"node": node, "dryRun": true, "drained": false, "deleted": web})
	r = s.do(t, "drain", node, "--timeout=1s", "-o", "json")
	r.check(t, clierror.ExitUnreachable)
	r.document(t, map[string]any{"node": node, "drained": false, "deleted": web})
	for _, step := range []string{"node/" + node + " cordoned", "instance/web-1 in namespace " + s.namespace + " deleted", "0 of 1 instances moved"} {
		if !strings.Contains(r.err, step) {
			t.Errorf("the standard error has no %q:\n%s", step, r.err)
		}
	}
	// A busy machine may be too slow for one timeout.
	const waits = "/web to end"
	poll.Until(t, time.Minute, "the document says what the drain waits for", func(context.Context) error {
		r := s.do(t, "drain", node, "--timeout=2s", "-o", "json")
		r.document(t, map[string]any{"node": node, "drained": false, "deleted": []any{}})
		if !strings.Contains(r.out, waits) || !strings.Contains(r.err, "0 of 1 instances moved, waiting for instance "+s.namespace+"/web-1: Terminating") {
			return fmt.Errorf("out: %s, err: %s", r.out, r.err)
		}
		return nil
	})
	s.confirmEnd(t, "web-1")
	s.do(t, "create", "instance", "-w", "web", "--name", "web-2").check(t, clierror.ExitOK)
	s.runningOn(t, "web-2", other)
	r = s.do(t, "drain", node, "-o", "json")
	r.check(t, clierror.ExitOK)
	r.document(t, map[string]any{"node": node, "drained": true, "deleted": []any{}, "error": nil, "waiting": nil})
}

func (r result) usage(t *testing.T, word string) {
	t.Helper()
	r.check(t, clierror.ExitUsage, word)
	if r.out != "" {
		t.Errorf("a wrong command line printed %q", r.out)
	}
}

func TestServerRolloutResult(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.workload(t, "web", "  deploy: Automatic\n  replicas: 2\n")
	w := &rikv1alpha1.Workload{}
	if err := s.c.Get(t.Context(), s.key("web"), w); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		status rikv1alpha1.WorkloadStatus
		flags  []string
		code   int
		want   map[string]any
	}{
		{
			rikv1alpha1.WorkloadStatus{ObservedGeneration: 1, Replicas: 2, UpdatedReplicas: 1, ReadyReplicas: 1}, []string{"--timeout=1s"}, clierror.ExitUnreachable,
			map[string]any{"workload": "web", "namespace": s.namespace, "done": false, "message": "1 of 2 instances are of the new revision", "replicas": 2, "currentReplicas": 2, "updatedReplicas": 1, "readyReplicas": 1},
		},
		{
			rikv1alpha1.WorkloadStatus{ObservedGeneration: 1, Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 1}, []string{"--watch=false"}, clierror.ExitOK,
			map[string]any{"done": false, "message": "1 of 2 instances are ready"},
		},
		{
			rikv1alpha1.WorkloadStatus{ObservedGeneration: 1, Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2}, nil, clierror.ExitOK,
			map[string]any{"done": true, "readyReplicas": 2, "error": nil, "waiting": nil},
		},
	} {
		w.Status = tc.status
		if err := s.c.Status().Update(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		r := s.do(t, append([]string{"rollout", "status", "web", "-o", "json"}, tc.flags...)...)
		r.check(t, tc.code)
		message, _ := tc.want["message"].(string)
		r.document(t, tc.want)
		if !strings.Contains(r.err, message) {
			t.Errorf("the standard error has no %q:\n%s", message, r.err)
		}
	}
	s.do(t, "rollout", "status", "web", "-o", "wide").usage(t, "use json or yaml")
	r := s.do(t, "rollout", "status", "nobody", "-o", "json")
	r.check(t, clierror.ExitNotFound)
	r.document(t, map[string]any{"workload": "nobody", "done": false})
}

func TestServerDeleteResult(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.workload(t, "web", "")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.letGo(t, &rikv1alpha1.Workload{}, "web")
	}()
	r := s.do(t, "delete", "workload", "web", "nobody", "-o", "json")
	<-ended
	r.check(t, clierror.ExitNotFound)
	r.document(t, map[string]any{"deleted": []map[string]any{{"resource": "workload.rik.dev", "name": "web"}}, "error": `workloads.rik.dev "nobody" not found`})

	app := "apiVersion: rik.dev/v1alpha1\nkind: Workload\nmetadata: {name: shop}\nspec:\n  kind: App\n  app: {repo: /srv/shop, command: [./shop]}\n"
	s.do(t, "apply", "-f", s.file(t, app)).check(t, clierror.ExitOK)
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		s.letGo(t, &rikv1alpha1.Workload{}, "shop")
	}()
	r = s.do(t, "delete", "app", "shop", "-o", "json")
	<-ended
	r.check(t, clierror.ExitOK, "shop deleted")
	r.document(t, map[string]any{"deleted": []map[string]any{{"resource": "workload.rik.dev", "name": "shop"}}, "error": nil})
	s.do(t, "delete", "app", "shop", "-o", "name").usage(t, "use json or yaml")
	s.do(t, "delete", "workload", "web", "-i", "-o", "json").usage(t, "--interactive")
	s.do(t, "delete", "workload", "web", "-o", "wide").usage(t, "json or yaml")
}

func TestServerOtherResults(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.workload(t, "web", "")
	s.do(t, "create", "instance", "-w", "web", "--name", "web-1").check(t, clierror.ExitOK)
	r := s.do(t, "suspend", "web-1", "-o", "json")
	r.check(t, clierror.ExitConflict)
	var held struct {
		Items []struct {
			Name, Error string
			Suspended   bool
		}
	}
	if err := json.Unmarshal([]byte(r.out), &held); err != nil || len(held.Items) != 1 || held.Items[0].Name != "web-1" || held.Items[0].Suspended || !strings.Contains(held.Items[0].Error, "it has no node yet") {
		t.Errorf("suspend -o json: %v, %s", err, r.out)
	}

	tenant := s.namespace + "-result"
	reported := make(chan error, 1)
	go func() {
		reported <- s.report(t.Context(), tenant, metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Made", Message: "made"})
	}()
	r = s.do(t, "create", "tenant", tenant, "-o", "json", "--timeout", served.Timeout.String())
	r.check(t, clierror.ExitOK, "created")
	r.document(t, map[string]any{"tenant": tenant, "created": true, "ready": true, "error": nil})
	if err := <-reported; err != nil {
		t.Error(err)
	}
	r = s.do(t, "create", "tenant", tenant+"-2", "-o", "json", "--timeout", "2s")
	r.check(t, clierror.ExitUnreachable, "waiting for tenant "+tenant+"-2: the controller has not reported on the tenant")
	r.document(t, map[string]any{"created": true, "ready": false})
}

func TestImageExportResult(t *testing.T) {
	t.Parallel()
	_, run := newImageServer(t)
	file := filepath.Join(t.TempDir(), "app.tar")
	r := run("", "export", "app:1", file, "-o", "json")
	r.check(t, clierror.ExitOK, "node/n1: exported app:1")
	r.document(t, map[string]any{"image": "app:1", "node": "n1", "file": file, "bytes": len("archive of app:1"), "error": nil})
	run("", "export", "app:1", "-", "-o", "json").usage(t, "name a file")
	r = run("", "export", "none:1", file, "-o", "json")
	r.check(t, clierror.ExitNotFound)
	r.document(t, map[string]any{"image": "none:1", "bytes": 0})
}
