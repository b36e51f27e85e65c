package rikctl

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/config"
)

// result is the exit code and output of a command line.
type result struct {
	code     int
	out, err string
}

// machine is a user with a home directory and an environment.
type machine struct {
	home  string
	env   map[string]string
	stdin string
}

func newMachine(t *testing.T) machine {
	t.Helper()
	// DATABASE_LOCATION hides a server that runs on the test machine.
	home := t.TempDir()
	return machine{home: home, env: map[string]string{config.EnvData: filepath.Join(home, "data")}}
}

func (m machine) run(t *testing.T, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	source := config.Source{Home: m.home, ReadFile: os.ReadFile, Getenv: func(k string) string { return m.env[k] }}
	streams := genericiooptions.IOStreams{In: strings.NewReader(m.stdin), Out: &out, ErrOut: &errOut}
	code := Execute(t.Context(), args, streams, source)
	return result{code, out.String(), errOut.String()}
}

// check fails the test unless the exit code is right and the output contains the words.
func (r result) check(t *testing.T, code int, words ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("code = %d, want %d\nout: %s\nerr: %s", r.code, code, r.out, r.err)
	}
	for _, w := range words {
		if !strings.Contains(r.out+r.err, w) {
			t.Errorf("the output does not contain %q\nout: %s\nerr: %s", w, r.out, r.err)
		}
	}
}

// closedPort returns an address on which no program listens. Its port is bound by a socket of
// the test that never listens, so no other program can take it.
func closedPort(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("https://127.0.0.1:%d", bound.(*unix.SockaddrInet4).Port)
}

func TestNoConfiguration(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, line := range []string{"get nodes", "create instance -w web", "describe node a", "logs a", "why a", "rollout status web", "drain a"} {
		m.run(t, strings.Fields(line)...).check(t, clierror.ExitUsage, "no configuration", filepath.Join(m.home, ".rik", "config.yaml")+" does not exist", "sudo rik server")
	}
}

func TestWrongConfiguration(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		content string
		words   []string
		broken  bool // also for commands that only change the configuration
	}{
		"text":           {"garbage{{{", []string{"must be an object", "next: the file must look like \"cluster: {"}, true},
		"a list":         {"[1,2]", []string{"must be an object", "next: the file must look like \"cluster: {"}, true},
		"unknown key":    {"cluster: {sever: 'https://a'}", []string{`unknown field "cluster.sever"`, "next: the file must look like \"cluster: {"}, true},
		"no server":      {"cluster: {name: a}", []string{"cluster.server: required", "next: write \"server: 'https://HOST:5000'\""}, false},
		"other server":   {"cluster: {server: 'ftp://a'}", []string{"ftp://a", "next: write \"server: 'https://HOST:5000'\""}, false},
		"a kubeconfig":   {"apiVersion: v1\nkind: Config\n", []string{"the file is a kubeconfig", "next: \"--kubeconfig "}, true},
		"half a user":    {"cluster: {server: 'https://a', clientKey: /dev/null}", []string{"cluster.clientKey", "next: correct it in"}, false},
		"does not exist": {"", []string{"no such file", "next: check the path that $RIKCONFIG gives"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			path := filepath.Join(m.home, "mine.yaml")
			m.env[config.EnvPath] = path
			if tc.content != "" {
				if err := os.WriteFile(path, []byte(tc.content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, line := range []string{"get nodes", "create instance -w web", "config current"} {
				m.run(t, strings.Fields(line)...).check(t, clierror.ExitUsage, append(tc.words, path)...)
			}
			if tc.broken {
				m.run(t, "config", "use", "a").check(t, clierror.ExitUsage, append(tc.words, path)...)
			}
		})
	}
	m := newMachine(t)
	other := filepath.Join(m.home, "other.yaml")
	if err := os.WriteFile(other, []byte("cluster: {server: 'https://a'}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{other, filepath.Join(m.home, "none"), m.home} {
		m.run(t, "get", "nodes", "--kubeconfig", path).check(t, clierror.ExitUsage, path, "next: --kubeconfig takes a kubeconfig")
		m.run(t, "why", "a", "--kubeconfig", path).check(t, clierror.ExitUsage, path, "next: --kubeconfig takes a kubeconfig")
	}
	m.run(t, "config", "set-cluster", "a", "--server", "ftp://a").check(t, clierror.ExitUsage, "--server", "not an http or https URL", "next:")
}

func TestDeniedConfiguration(t *testing.T) {
	t.Parallel()
	var out, errOut bytes.Buffer
	source := config.Source{Home: "/home/ada", Getenv: func(string) string { return "" }, ReadFile: func(path string) ([]byte, error) {
		if path == "/var/lib/rik/data/config.yaml" {
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrPermission}
		}
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}}
	code := Execute(t.Context(), []string{"get", "nodes"}, genericiooptions.IOStreams{In: &out, Out: &out, ErrOut: &errOut}, source)
	if code != clierror.ExitUsage || !strings.Contains(errOut.String(), "sudo install -m 600") {
		t.Errorf("code %d, %s", code, errOut.String())
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.env[config.EnvServer] = closedPort(t)
	file := filepath.Join(m.home, "a.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"get nodes", "create instance -w web", "describe node a", "logs a", "apply -f " + file, "version", "top nodes", "delete instance a"} {
		r := m.run(t, strings.Fields(line)...)
		r.check(t, clierror.ExitUnreachable, "next: nothing listens on "+m.env[config.EnvServer], "rik server")
		if strings.Contains(r.err, "Unhandled Error") {
			t.Errorf("%s: the libraries' log is shown:\n%s", line, r.err)
		}
	}
}

// TestTransport connects to servers that differ from what the configuration says.
func TestTransport(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(broken.Close)
	unknown := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
	}))
	t.Cleanup(unknown.Close)
	tests := []struct {
		name, server string
		code         int
		words        []string
	}{
		{"plain http behind https", strings.Replace(plain.URL, "http:", "https:", 1), clierror.ExitUnreachable, []string{"answers in plain HTTP"}},
		{"another authority", secure.URL, clierror.ExitUnreachable, []string{"has neither the authority of", "name config.yaml of the server"}},
		{"starting", broken.URL, clierror.ExitUnreachable, nil},
		{"who are you", unknown.URL, clierror.ExitDenied, []string{"nor credentials", "name config.yaml of the server"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.env[config.EnvServer] = tc.server
			m.run(t, "get", "nodes").check(t, tc.code, tc.words...)
			m.run(t, "create", "instance", "-w", "web").check(t, tc.code, tc.words...)
		})
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	// The server answers every request with 404, so only the command line can be the cause of
	// the errors.
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	m.env[config.EnvServer] = server.URL
	tests := []struct{ line, word string }{
		{"crate", "did you mean create?"},
		{"create workloadz", "did you mean workload?"},
		{"config veiw", "did you mean view?"},
		{"create workload", "-f FILE is required"},
		{"create workload extra -f x", "write rikctl create workload -f FILE"},
		{"create instance", "--workload-id is required"},
		{"create instance -w a --name b -r 2", "--name cannot be used with several replicas"},
		{"create instance -w a -r -1", "--replicas must be 1 or more"},
		{"create instance -w a --replicas 0", "--replicas must be 1 or more"},
		{"create tenant a --timeout=0", "--timeout must be more than 0"},
		{"create instance -w a -r 10001", "--replicas must not be above 10000"},
		{"create instance --bogus", "unknown flag: --bogus"},
		{"create tenant", "write rikctl create tenant "},
		{"exec a ls", "-- and a command are required"},
		{"logs", "write rikctl logs "},
		{"logs pod/a", "neither an instance nor a workload"},
		{"logs a --tail=-5", "--tail must be"},
		{"drain", "write rikctl drain "},
		{"taint node a", "at least one taint"},
		{"taint node a b", "no effect"},
		{"rollout status node/a", "is not a workload"},
		{"why", "write rikctl why "},
		{"top nodes --sort-by=age", "cpu or memory"},
		{"version -o xml --client", "json or yaml"},
		{"config set-cluster a", "--server is required"},
		{"get nodes --context x", "--kubeconfig"},
		{"lint", "-f FILE is required"},
		{"scale workload web --replicas=-1", "--replicas must be a number from 0 to 2147483647"},
		{"scale workload web --replicas=99999999999", "--replicas must be a number from 0 to 2147483647"},
		{"scale workload web", `required flag(s) "replicas"`},
		{"scale --replicas=1", "a workload is required"},
		{"wait instance a", "--for is required"},
		{"wait instance a --for=foo", "--for=foo is not supported"},
		{"wait instance a --for=phase=", "--for=phase= is not supported"},
		{"wait instance a --for=phase=Dancing", `no phase "Dancing"`},
		{"wait instance a --for=condition=Ready --timeout=soon", "invalid duration"},
	}
	for _, tc := range tests {
		t.Run(tc.line, func(t *testing.T) {
			t.Parallel()
			m.run(t, strings.Fields(tc.line)...).check(t, clierror.ExitUsage, tc.word, "next: ")
		})
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.run(t, "version", "--client").check(t, clierror.ExitOK, "Client: ")
	m.run(t, "--version").check(t, clierror.ExitOK, "rikctl version ")
	for _, format := range []string{"json", "yaml"} {
		r := m.run(t, "version", "--client", "-o", format)
		var v struct {
			Client struct{ Version, GoVersion string }
		}
		if err := yaml.Unmarshal([]byte(r.out), &v); err != nil || v.Client.Version == "" || v.Client.GoVersion == "" {
			t.Errorf("version -o %s = %s (%v)", format, r.out, err)
		}
	}
}

func TestConfigCommands(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	ca := filepath.Join(m.home, "ca.crt")
	if err := os.WriteFile(ca, []byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.run(t, "config", "set-cluster", "home", "--server", "https://a:5000", "--token", "secret", "--certificate-authority", ca).check(t, clierror.ExitOK, "cluster home is stored in")
	m.run(t, "config", "set-cluster", "office", "--server", "https://b:5000", "--certificate-authority", ca, "--embed-certs").check(t, clierror.ExitOK)
	m.run(t, "config", "current").check(t, clierror.ExitOK, "home at https://a:5000")
	view := m.run(t, "config", "view")
	view.check(t, clierror.ExitOK, "REDACTED", "https://b:5000", ca, "DATA+OMITTED")
	if strings.Contains(view.out, "secret") {
		t.Errorf("the token is shown:\n%s", view.out)
	}
	m.run(t, "config", "view", "--raw").check(t, clierror.ExitOK, "secret")
	m.run(t, "config", "use", "office").check(t, clierror.ExitOK, "cluster office at https://b:5000")
	m.run(t, "config", "current").check(t, clierror.ExitOK, "office at https://b:5000")
	m.run(t, "config", "use", "moon").check(t, clierror.ExitError, "moon", `["home" "office"]`, "set-cluster moon")
	m.run(t, "config", "set-cluster", "x", "--server", "https://x", "--client-key", "/gone").check(t, clierror.ExitError, "/gone")
	m.run(t, "__complete", "config", "use", "").check(t, clierror.ExitOK, "home", "office")
}

func TestLintOffline(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.stdin = `apiVersion: rik.dev/v1alpha1
kind: Workload
metadata: {name: web}
spec: {containers: [{name: web, image: web}]}
---
apiVersion: v0
kind: Pod
name: old
spec: {containers: [{name: a, image: b}]}
---
apiVersion: example.org/v1
kind: Thing
metadata: {name: t}
`
	m.run(t, "lint", "-f", "-").check(t, clierror.ExitOK, "Workload web: its fields exist", "Workload old: its fields exist", "Thing t: not checked; only a server knows this type")
	m.stdin = strings.Replace(m.stdin, "image: web}", "imagePolicy: x}", 1)
	m.stdin = strings.Replace(m.stdin, "image: b}", "imge: b}", 1)
	m.run(t, "lint", "--offline", "-f", "-").check(t, clierror.ExitInvalid,
		`- (document 1): unknown field "spec.containers[0].imagePolicy"`, `unknown field "spec.containers[0].imge"`)
	m.env[config.EnvServer] = closedPort(t)
	m.stdin = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
	m.run(t, "lint", "-f", "-").check(t, clierror.ExitOK, "which was not reachable")
}

func TestLintReadsLists(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.stdin = `{"apiVersion":"v1","kind":"List","items":[
		{"apiVersion":"rik.dev/v1alpha1","kind":"Workload","metadata":{"name":"good"},"spec":{"containers":[{"name":"a","image":"b"}]}},
		{"apiVersion":"rik.dev/v1alpha1","kind":"Workload","metadata":{"name":"bad"},"spec":{"containers":[{"name":"a","imge":"b"}]}}]}`
	m.run(t, "lint", "--offline", "-f", "-").check(t, clierror.ExitInvalid, "Workload good: its fields exist", `- (item 2): unknown field "spec.containers[0].imge"`)
}

func TestCreateWorkloadRefusesOffline(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.env[config.EnvServer] = closedPort(t)
	m.stdin = `{"apiVersion":"v0","kind":"Pod","name":"a","spec":{"containers":[{"name":"a","image":"b","ports":{"prot":1}}]}}`
	m.run(t, "create", "workloads", "-f", "-").check(t, clierror.ExitInvalid, `spec.containers[0].ports.prot`)
}

// TestUsageCodes checks that every mistake in the command line ends with code 2, whether rikctl
// or kubectl's code finds it.
func TestUsageCodes(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.env[config.EnvServer] = closedPort(t)
	m.stdin = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
	for _, tc := range []struct {
		line  string
		words []string
	}{
		{"create workload -f /nonexistent", []string{"/nonexistent"}},
		{"apply -f /nonexistent", []string{"/nonexistent"}},
		{"lint -f /nonexistent", []string{"/nonexistent"}},
		{"apply --dry-run=client -f -", []string{"--dry-run=server", `"rikctl apply --help"`}},
		{"get nodes --request-timeout abc", []string{"timeout"}},
		{"drain n --timeout=-1s", []string{"--timeout"}},
		{"help nosuch", []string{`unknown command "nosuch"`}},
		{"help rollout nosuch", []string{`unknown command "nosuch"`}},
		{"completion fisch", []string{`unknown command "fisch"`, "fish"}},
		{"auth can-i", []string{"See 'rikctl auth can-i"}},
	} {
		m.run(t, strings.Fields(tc.line)...).check(t, clierror.ExitUsage, tc.words...)
	}
	for _, line := range []string{"help", "help rollout undo", "completion", "completion bash"} {
		m.run(t, strings.Fields(line)...).check(t, clierror.ExitOK)
	}
}

// TestFilesAreReadStrictly checks that a duplicate key is an error, and that an error in the
// standard input does not name a temporary file.
func TestFilesAreReadStrictly(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.env[config.EnvServer] = closedPort(t)
	for _, command := range []string{"apply", "diff"} {
		m.stdin = "apiVersion: rik.dev/v1alpha1\nkind: Workload\nmetadata: {name: a}\nspec: {replicas: 2, replicas: 3}\n"
		m.run(t, command, "-f", "-").check(t, clierror.ExitInvalid, "-: ", `"replicas" already set`)
		m.stdin = "a: b\n c: d\n"
		got := m.run(t, command, "-f", "-")
		got.check(t, clierror.ExitInvalid, "-: ", "line 2")
		if strings.Contains(got.err, os.TempDir()) {
			t.Errorf("%s names a temporary file: %s", command, got.err)
		}
	}
}

// TestHelp reads every page of help. Each must name rikctl and no other program.
func TestHelp(t *testing.T) {
	t.Parallel()
	var pages int
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		pages++
		var out bytes.Buffer
		cmd.SetOut(&out)
		if err := cmd.Help(); err != nil {
			t.Errorf("%s: %v", cmd.CommandPath(), err)
		}
		if strings.Contains(strings.ReplaceAll(out.String(), "kubectl/", ""), "kubectl ") {
			t.Errorf("%s speaks of kubectl:\n%s", cmd.CommandPath(), out.String())
		}
		if cmd.Short == "" {
			t.Errorf("%s has no short description", cmd.CommandPath())
		}
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(New(genericiooptions.NewTestIOStreamsDiscard(), config.Source{}))
	if pages < 40 {
		t.Errorf("%d pages of help, want all", pages)
	}
}

func TestTopics(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.run(t, "help", "exit-codes").check(t, clierror.ExitOK, "5  the server was not reachable")
	m.run(t, "help", "configuration").check(t, clierror.ExitOK, "$RIKCONFIG", "certificateAuthority")
	for _, shell := range []string{"bash", "zsh", "fish"} {
		m.run(t, "completion", shell).check(t, clierror.ExitOK, "rikctl")
	}
	r := m.run(t, "__complete", "create", "")
	r.check(t, clierror.ExitOK, "workload", "instance", "tenant", "namespace")
	// Without a server there are no completions and no error.
	m.run(t, "__complete", "get", "inst").check(t, clierror.ExitOK)
}

// TestConcurrentCommandTrees builds, renders and runs several command trees at once, for the race
// detector.
func TestConcurrentCommandTrees(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.env[config.EnvServer] = closedPort(t)
	lines := []string{"help", "get --help", "apply --help", "version --client", "get nodes", "completion bash", "delete instance a", "scale workload a --replicas=1"}
	codes := make([]int, 3*len(lines))
	var group sync.WaitGroup
	for i := range codes {
		group.Go(func() {
			streams := genericiooptions.NewTestIOStreamsDiscard()
			source := config.Source{Home: m.home, ReadFile: os.ReadFile, Getenv: func(k string) string { return m.env[k] }}
			codes[i] = Execute(context.Background(), strings.Fields(lines[i%len(lines)]), streams, source)
		})
	}
	group.Wait()
	for i, code := range codes {
		want := clierror.ExitOK
		if slices.Contains([]string{"get nodes", "delete instance a", "scale workload a --replicas=1"}, lines[i%len(lines)]) {
			want = clierror.ExitUnreachable
		}
		if code != want {
			t.Errorf("%q = code %d, want %d", lines[i%len(lines)], code, want)
		}
	}
}
