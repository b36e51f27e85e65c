package rikctl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/config"
	"rik.dev/rik/internal/rikctl/notranslate"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	workloads := schema.GroupResource{Group: "rik.dev", Resource: "workloads"}
	tests := []struct {
		name string
		err  error
		code int
		text string
		next string
	}{
		{"a command's own code", exitError{42}, 42, "", ""},
		{"usage", usageError{"rikctl get", errors.New("unknown flag: --x")}, ExitUsage, "unknown flag", "rikctl get --help"},
		{"no configuration", &config.MissingError{Looked: []string{"--config: not set"}}, ExitUsage, "looked at", "rik server"},
		{"denied configuration", &config.DeniedError{Path: "/p", Target: "/home/a/.rik/config.yaml"}, ExitUsage, "permission denied", "sudo install"},
		{"not found", fmt.Errorf("x: %w", apierrors.NewNotFound(workloads, "web")), ExitNotFound, `workloads.rik.dev "web" not found`, ""},
		{"exists", apierrors.NewAlreadyExists(workloads, "web"), ExitConflict, "already exists", ""},
		{"changed meanwhile", apierrors.NewConflict(workloads, "web", errors.New("changed")), ExitConflict, "changed", ""},
		{"invalid", apierrors.NewInvalid(schema.GroupKind{Group: "rik.dev", Kind: "Workload"}, "web", nil), ExitInvalid, "is invalid", ""},
		{"bad request", apierrors.NewBadRequest(`unknown field "spec.foo"`), ExitInvalid, "spec.foo", ""},
		{"forbidden", apierrors.NewForbidden(workloads, "web", errors.New("no")), ExitDenied, "forbidden", "auth can-i"},
		{"unauthorized", apierrors.NewUnauthorized("who"), ExitDenied, "who", "https://s:5000 does not know"},
		{"busy", apierrors.NewServiceUnavailable("starting"), ExitUnreachable, "starting", "try again"},
		{"timed out", timeoutError{"node n to be drained"}, ExitUnreachable, "timed out waiting for node n", ""},
		{"ended by the user", fmt.Errorf("x: %w", context.Canceled), ExitInterrupted, "", ""},
		{"deadline", fmt.Errorf("x: %w", context.DeadlineExceeded), ExitUnreachable, "deadline", ""},
		{"kubectl: refused", &fatal{"The connection to the server s:5000 was refused - did you specify the right host or port?\n", 1}, ExitUnreachable, "refused", "sudo rik server"},
		{"kubectl: not found", &fatal{`Error from server (NotFound): workloads.rik.dev "web" not found`, 1}, ExitNotFound, "not found", ""},
		{"kubectl: several", &fatal{"Error from server (AlreadyExists): a\nError from server (NotFound): b\n", 1}, ExitConflict, "NotFound", ""},
		{"kubectl: no type", &fatal{`error: the server doesn't have a resource type "workloadz"`, 1}, ExitNotFound, "workloadz", "api-resources"},
		{"kubectl: undeclared field", &fatal{"Error from server: failed to create typed patch object: .spec.foo: field not declared in schema", 1}, ExitInvalid, ".spec.foo", ""},
		{"kubectl: usage", &fatal{"error: resource(s) were provided\nSee 'rikctl get -h' for help and examples", 1}, ExitUsage, "resource(s)", ""},
		{"kubectl: wait", &fatal{"error: timed out waiting for the condition on instances/a", 1}, ExitUnreachable, "timed out", ""},
		{"exec: forbidden", errors.New(`unable to upgrade connection: instances.rik.dev "a" is forbidden: User "b" cannot create`), ExitDenied, "forbidden", "auth can-i"},
		{"exec: no node", errors.New("unable to upgrade connection: the node is not connected"), ExitUnreachable, "not connected", "get nodes"},
		{"kubectl: login", &fatal{"error: You must be logged in to the server (Unauthorized)", 1}, ExitDenied, "logged in", "https://s:5000 does not know"},
		{"kubectl: certificate", &fatal{"Unable to connect to the server: tls: failed to verify certificate: x509: certificate signed by unknown authority", 1}, ExitUnreachable, "x509", "authority in the configuration"},
		{"kubectl: published form", &fatal{`error: resource mapping not found for name: "" namespace: "" from "w.json": no matches for kind "Pod" in version "v0"`, 1}, ExitInvalid, "no matches", "create workload -f"},
		{"kubectl: http on the TLS port", &fatal{"Error from server (BadRequest): the server rejected our request for an unknown reason", 1}, ExitUsage, "rejected", "https://s:5000 does not answer as the API: check that cluster.server begins with https://"},
		{"http on the TLS port", apierrors.NewBadRequest("the server rejected our request for an unknown reason"), ExitUsage, "rejected", "begins with https://"},
		{"kubectl: another's field", &fatal{"error: Apply failed with 1 conflict: conflict with \"rikctl\" with subresource \"scale\" using rik.dev/v1alpha1: .spec.replicas", 1}, ExitConflict, ".spec.replicas", "--force-conflicts"},
		{"kubectl: silent", &fatal{"", 1}, ExitError, "", ""},
		{"kubectl: differences", &fatal{"exit status 1", 1}, ExitError, "exit status 1", ""},
		{"anything else", errors.New("odd"), ExitError, "error: odd", ""},
		{"with advice", advised{errors.New("odd"), "do this"}, ExitError, "odd", "do this"},
		{"advice on a not found", advised{apierrors.NewNotFound(workloads, "web"), "look"}, ExitNotFound, "not found", "look"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := validate(tc.err, "https://s:5000")
			if got.code != tc.code || !strings.Contains(got.text, tc.text) || !strings.Contains(got.next, tc.next) {
				t.Errorf("judge(%v) = %d %q next %q; want %d, %q, next %q", tc.err, got.code, got.text, got.next, tc.code, tc.text, tc.next)
			}
			if tc.text == "" && got.text != "" {
				t.Errorf("judge(%v) says %q, want silence", tc.err, got.text)
			}
		})
	}
}

func TestParseTarget(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		want target
		bad  bool
	}{
		"web-1": {want: target{name: "web-1"}}, "instance/web-1": {want: target{name: "web-1"}}, "inst/a": {want: target{name: "a"}},
		"workload/web": {want: target{true, "web"}}, "wl/web": {want: target{true, "web"}}, "workloads.rik.dev/web": {want: target{true, "web"}},
		"pod/a": {bad: true}, "workload/": {bad: true}, "/a": {bad: true},
	}
	for arg, tc := range tests {
		got, err := parseTarget(arg)
		if (err != nil) != tc.bad || (err == nil && got != tc.want) {
			t.Errorf("parseTarget(%q) = %v, %v; want %v, error %v", arg, got, err, tc.want, tc.bad)
		}
	}
}

func TestWorkloadArg(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{"web": "web", "workload/web": "web", "workload web": "web", "wl web": "web",
		"instance/web": "", "node web": "", "web other": "", "workload/web other": ""} {
		got, err := workloadArg(&cobra.Command{}, strings.Fields(line))
		if got != want || (err != nil) != (want == "") {
			t.Errorf("workloadArg(%q) = %q, %v; want %q", line, got, err, want)
		}
	}
}

func TestScaled(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]string{"workload a b": {"a", "b"}, "wl/a workload/b node/c": {"a", "b"}, "deployment a": nil} {
		if diff := cmp.Diff(want, scaled(strings.Fields(line))); diff != "" {
			t.Errorf("scaled(%q) (-want +got):\n%s", line, diff)
		}
	}
}

func TestLongConditions(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"phase=Running":   "jsonpath={.status.phase}=Running",
		"condition=Ready": "condition=Ready",
		"delete":          "delete",
	} {
		if got := longConditions([]string{given}); got[0] != want {
			t.Errorf("longConditions(%q) = %q, want %q", given, got[0], want)
		}
	}
}

// TestExecNeedsItsContainerOnly checks that exec works in a running container while another
// container cannot start.
func TestExecNeedsItsContainerOnly(t *testing.T) {
	t.Parallel()
	waits := rikv1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Name: "waits"}, Status: rikv1alpha1.InstanceStatus{
		Phase: rikv1alpha1.InstanceCreating,
		Containers: []rikv1alpha1.ContainerStatus{
			{Name: "broken", State: rikv1alpha1.ContainerWaiting, Reason: "StartError"}, {Name: "good", State: rikv1alpha1.ContainerRunning},
		},
	}}
	runs := rikv1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Name: "runs"}, Status: rikv1alpha1.InstanceStatus{Phase: rikv1alpha1.InstanceRunning}}
	for _, tc := range []struct {
		container string
		of        []rikv1alpha1.Instance
		want      string // empty: no instance
		words     []string
	}{
		{"good", []rikv1alpha1.Instance{waits}, "waits", nil},
		{"broken", []rikv1alpha1.Instance{waits}, "", []string{"broken", "Waiting", "StartError"}},
		{"nosuch", []rikv1alpha1.Instance{waits}, "", []string{`"nosuch" is not in it`, "broken, good"}},
		{"", []rikv1alpha1.Instance{waits}, "", []string{"waits is Creating"}},
		{"", []rikv1alpha1.Instance{{}}, "", []string{"Pending"}},
		{"good", []rikv1alpha1.Instance{waits, runs}, "runs", nil},
	} {
		got, err := firstRunning(tc.of, tc.container)
		for _, word := range tc.words {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("firstRunning(%q) = %v, want it to say %q", tc.container, err, word)
			}
		}
		if (err == nil) != (tc.want != "") || err == nil && got.Name != tc.want {
			t.Errorf("firstRunning(%q) = %v, %v, want %q", tc.container, got, err, tc.want)
		}
	}
}

func TestTaints(t *testing.T) {
	t.Parallel()
	current := []rikv1alpha1.Taint{{Key: "a", Value: "1", Effect: "NoSchedule"}, {Key: "a", Effect: "NoExecute"}, {Key: "b", Effect: "NoSchedule"}}
	tests := []struct {
		line      string
		overwrite bool
		want      []string
		err       string
	}{
		{line: "c=2:NoExecute", want: []string{"a=1:NoSchedule", "a:NoExecute", "b:NoSchedule", "c=2:NoExecute"}},
		{line: "a-", want: []string{"b:NoSchedule"}},
		{line: "a:NoExecute-", want: []string{"a=1:NoSchedule", "b:NoSchedule"}},
		{line: "a=1:NoSchedule", want: []string{"a=1:NoSchedule", "a:NoExecute", "b:NoSchedule"}},
		{line: "a=2:NoSchedule", err: "--overwrite"},
		{line: "a=2:NoSchedule", overwrite: true, want: []string{"a=2:NoSchedule", "a:NoExecute", "b:NoSchedule"}},
		{line: "b- b:PreferNoSchedule", want: []string{"a=1:NoSchedule", "a:NoExecute", "b:PreferNoSchedule"}},
		{line: "z-", err: `"z" not found`},
		{line: "z", err: "no effect"},
		{line: "z=1:Never", err: `effect "Never"`},
		{line: ":NoSchedule", err: "no key"},
	}
	for _, tc := range tests {
		t.Run(tc.line, func(t *testing.T) {
			t.Parallel()
			got, err := taintAll(current, strings.Fields(tc.line), tc.overwrite)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error = %v, want %q", err, tc.err)
				}
				return
			}
			var words []string
			for i := range got {
				words = append(words, got[i].Text())
			}
			if diff := cmp.Diff(tc.want, words); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func taintAll(current []rikv1alpha1.Taint, words []string, overwrite bool) ([]rikv1alpha1.Taint, error) {
	var changes []taintChange
	for _, w := range words {
		c, err := parseTaint(w)
		if err != nil {
			return nil, err
		}
		changes = append(changes, c)
	}
	return applyTaints(current, changes, overwrite)
}

func TestRolloutProgress(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*rikv1alpha1.Workload)
		want   string
		done   bool
		err    string
	}{
		{"manual", func(w *rikv1alpha1.Workload) { w.Spec.Deploy = rikv1alpha1.DeployManual }, "", false, "deploy: Manual"},
		{"not seen", func(w *rikv1alpha1.Workload) { w.Generation = 3 }, "waiting for the controller", false, ""},
		{"paused", func(w *rikv1alpha1.Workload) { w.Spec.Paused = true }, "", false, "paused"},
		{"stuck", func(w *rikv1alpha1.Workload) {
			w.Status.Conditions = []metav1.Condition{{Type: rikv1alpha1.WorkloadProgressing, Status: metav1.ConditionFalse, Reason: reasonDeadline, Message: "no node"}}
		}, "", false, "no node"},
		{"failed for good", func(w *rikv1alpha1.Workload) {
			w.Status.Conditions = []metav1.Condition{{Type: rikv1alpha1.WorkloadProgressing, Status: metav1.ConditionFalse, Reason: reasonFailed, Message: "all failed"}}
		}, "", false, "all failed"},
		{"old ones only", func(w *rikv1alpha1.Workload) { w.Status.UpdatedReplicas = 1 }, "1 of 3 instances are of the new revision", false, ""},
		{"old ones left", func(w *rikv1alpha1.Workload) { w.Status.Replicas = 4 }, "1 instances of older revisions", false, ""},
		{"not ready", func(*rikv1alpha1.Workload) {}, "2 of 3 instances are ready", false, ""},
		{"done", func(w *rikv1alpha1.Workload) { w.Status.ReadyReplicas = 3 }, "is rolled out", true, ""},
		{"none wanted", func(w *rikv1alpha1.Workload) {
			w.Spec.Replicas, w.Status = pointer(int32(0)), rikv1alpha1.WorkloadStatus{ObservedGeneration: 2}
		}, "0 of 0", true, ""},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := sampleWorkload()
			tc.change(w)
			got, err := rolloutProgress(w)
			if (err == nil) != (tc.err == "") || (err != nil && !strings.Contains(err.Error(), tc.err)) {
				t.Fatalf("rolloutProgress() error = %v, want %q", err, tc.err)
			}
			if !strings.Contains(got.message, tc.want) || got.done != tc.done {
				t.Errorf("rolloutProgress() = %q, %v; want %q, %v", got.message, got.done, tc.want, tc.done)
			}
		})
	}
}

func TestUndoTarget(t *testing.T) {
	t.Parallel()
	revision := func(name string, number int64) rikv1alpha1.WorkloadRevision {
		return rikv1alpha1.WorkloadRevision{ObjectMeta: metav1.ObjectMeta{Name: name}, Revision: number}
	}
	all := []rikv1alpha1.WorkloadRevision{revision("b", 5), revision("a", 2), revision("c", 7)}
	tests := []struct {
		name      string
		revisions []rikv1alpha1.WorkloadRevision
		number    int64
		want      string
		err       string
	}{
		{"the one before", all, 0, "b", ""},
		{"a number", all, 2, "a", ""},
		{"the current", all, 7, "", "is the current one"},
		{"a missing one", all, 3, "", "7, 5, 2"},
		{"none before", all[2:], 0, "", "no earlier revision"},
	}
	for _, tc := range tests {
		got, err := undoTarget(tc.revisions, "c", tc.number)
		switch {
		case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
			t.Errorf("%s: error = %v, want %q", tc.name, err, tc.err)
		case tc.err == "" && (err != nil || got.Name != tc.want):
			t.Errorf("%s: undoTarget() = %v, %v; want %s", tc.name, got, err, tc.want)
		}
	}
}

func TestLogFlags(t *testing.T) {
	t.Parallel()
	f := &logFlags{tail: 5, since: 1500 * time.Millisecond}
	if err := f.complete(); err != nil {
		t.Fatal(err)
	}
	query, err := parameters.EncodeParameters(&f.options, rikv1alpha1.SchemeGroupVersion)
	if err != nil || query.Encode() != "sinceSeconds=2&tailLines=5" {
		t.Errorf("query = %q, %v", query.Encode(), err)
	}
	all := &logFlags{tail: -1}
	if err := all.complete(); err != nil || all.options.TailLines != nil {
		t.Errorf("complete() = %v, tail %v; want none", err, all.options.TailLines)
	}
	for _, bad := range []*logFlags{{tail: -2}, {since: -1}, {options: rikv1alpha1.InstanceLogOptions{Follow: true, Previous: true}}} {
		if err := bad.complete(); err == nil {
			t.Errorf("complete(%+v) = nil, want an error", bad)
		}
	}
}

func TestExecQuery(t *testing.T) {
	t.Parallel()
	query, err := parameters.EncodeParameters(&rikv1alpha1.InstanceExecOptions{Command: []string{"ls", "-l"}, Stdout: true, Container: "web"},
		rikv1alpha1.SchemeGroupVersion)
	if err != nil || query.Encode() != "command=ls&command=-l&container=web&stdout=true" {
		t.Errorf("query = %q, %v", query.Encode(), err)
	}
}

func TestCopyLines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<20)
	var out bytes.Buffer
	w := &lineWriter{out: &out}
	if err := w.copyLines("[a] ", strings.NewReader("one\n"+long+"\nlast")); err != nil {
		t.Fatal(err)
	}
	if want := "[a] one\n[a] " + long + "\n[a] last\n"; out.String() != want {
		t.Errorf("copyLines wrote %d bytes, want %d", out.Len(), len(want))
	}
}

// Lines that have arrived are written together, without waiting for the next one.
func TestLinesAreWrittenWhenTheyCome(t *testing.T) {
	t.Parallel()
	from, to := io.Pipe()
	out := make(chan string)
	done := make(chan error, 1)
	go func() { done <- (&lineWriter{out: chanWriter(out)}).copyLines("[a] ", from) }()
	for _, step := range []struct{ comes, want string }{{"one\ntwo\nthr", "[a] one\n[a] two\n"}, {"ee\n", "[a] three\n"}} {
		if _, err := io.WriteString(to, step.comes); err != nil {
			t.Fatal(err)
		}
		if got := <-out; got != step.want {
			t.Errorf("after %q: %q, want %q", step.comes, got, step.want)
		}
	}
	_ = to.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

type chanWriter chan string

func (w chanWriter) Write(p []byte) (int, error) {
	w <- string(p)
	return len(p), nil
}

func TestDecodeWorkload(t *testing.T) {
	t.Parallel()
	const object = "apiVersion: rik.dev/v1alpha1\nkind: Workload\nmetadata: {name: a}\nspec: {containers: [{name: a, image: b}]}\n"
	tests := []struct{ name, text, want, err string }{
		{"of today", object, "shop/a", ""},
		{"with a namespace", strings.Replace(object, "name: a}", "name: a, namespace: other}", 1), "other/a", ""},
		{"published", `{"apiVersion":"v0","kind":"Pod","name":"a","spec":{"containers":[{"name":"a","image":"b"}]}}`, "shop/a", ""},
		{"unknown field", strings.Replace(object, "image: b", "imag: b", 1), "", `f.yaml: unknown field "spec.containers[0].imag"`},
		{"two unknown fields", strings.Replace(object, "image: b", "imag: b, x: 1", 1), "", "spec.containers[0].x"},
		{"published, unknown field", `{"apiVersion":"v0","kind":"Pod","name":"a","spec":{"containers":[{"name":"a","image":"b","x":1}]}}`, "", "spec.containers[0].x"},
		{"wrong type", strings.Replace(object, "{containers:", "{replicas: many, containers:", 1), "", "replicas"},
		{"another kind", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", "", "kind: ConfigMap is not a Workload"},
		{"an unknown kind", "apiVersion: rik.dev/v1alpha1\nkind: Work\n", "", "unknown type"},
		{"no kind", "a: b\n", "", "apiVersion and kind: required"},
		{"no YAML", "a: [", "", "f.yaml"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w, err := decodeWorkload(document{"f.yaml", []byte(tc.text)}, "shop")
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error = %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := w.Namespace + "/" + w.Name; got != tc.want {
				t.Errorf("decodeWorkload() = %s, want %s", got, tc.want)
			}
		})
	}
}

func TestReadDocuments(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"b.yaml": "a: 1\n---\n# nothing\n---\na: 2\n", "a.json": `{"a": 0}`, "notes.txt": "a: 9\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readDocuments([]string{dir, "-"}, strings.NewReader("a: 3\n"))
	if err != nil {
		t.Fatal(err)
	}
	var sources []string
	for _, d := range got {
		sources = append(sources, strings.TrimPrefix(d.source, dir+"/"))
	}
	want := []string{"a.json", "b.yaml (document 1)", "b.yaml (document 2)", "-"}
	if diff := cmp.Diff(want, sources); diff != "" {
		t.Errorf("readDocuments (-want +got):\n%s", diff)
	}
	if _, err := readDocuments([]string{"-"}, strings.NewReader("# nothing\n")); err == nil {
		t.Error("readDocuments of nothing = nil, want an error")
	}
	if _, err := readDocuments([]string{filepath.Join(dir, "gone")}, nil); err == nil {
		t.Error("readDocuments of a missing file = nil, want an error")
	}
}

func TestSimilar(t *testing.T) {
	t.Parallel()
	words := []string{"workloads", "workload", "nodes", "node", "instances/log", ""}
	if got := similar("workloadz", words); !slices.Equal(got, []string{"workload", "workloads"}) {
		t.Errorf("similar = %q", got)
	}
	if got := similar("xyz", words); len(got) != 0 {
		t.Errorf("similar = %q, want none", got)
	}
}

func TestRenamed(t *testing.T) {
	t.Parallel()
	const text = "kubectl get; see https://kubernetes.io/docs/reference/kubectl/#x"
	if got, want := renamed(text), "rikctl get; see https://kubernetes.io/docs/reference/kubectl/#x"; got != want {
		t.Errorf("renamed() = %q, want %q", got, want)
	}
}

func TestServerText(t *testing.T) {
	t.Parallel()
	for served, want := range map[string]string{
		"v1.36.3+rik-v0.1.0-dev": "v0.1.0-dev (Kubernetes API v1.36.3)",
		"v1.30.1+k3s1":           "v1.30.1+k3s1 (not a rik server)",
	} {
		if got := serverText(served); got != want {
			t.Errorf("serverText(%q) = %q, want %q", served, got, want)
		}
	}
}

// TestTranslationsAreNotRead fails if another package requests a translation before package
// notranslate is initialized.
func TestTranslationsAreNotRead(t *testing.T) {
	t.Parallel()
	if notranslate.Err != nil {
		t.Errorf("each start reads kubectl's translations: %v", notranslate.Err)
	}
}
