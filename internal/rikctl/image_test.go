package rikctl

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rpc/nodeimage"
)

// imageServer is an API server with nodes n1, n2 and n3, as far as images need one. Node n3 is not
// connected.
type imageServer struct {
	mu       sync.Mutex
	images   map[string][]nodeimage.Image
	received map[string]string // archives and credentials by node
	removed  []string
}

func (s *imageServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/api":
		fmt.Fprint(w, `{"kind":"APIVersions","versions":["v1"]}`)
		return
	case "/apis":
		fmt.Fprint(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"rik.dev","versions":[{"groupVersion":"rik.dev/v1alpha1","version":"v1alpha1"}],"preferredVersion":{"groupVersion":"rik.dev/v1alpha1","version":"v1alpha1"}}]}`)
		return
	case "/api/v1":
		fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"v1","resources":[{"name":"secrets","namespaced":true,"kind":"Secret","verbs":["get"]}]}`)
		return
	case "/apis/rik.dev/v1alpha1":
		fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"rik.dev/v1alpha1","resources":[{"name":"nodes","singularName":"node","namespaced":false,"kind":"Node","verbs":["get","list"]}]}`)
		return
	case "/apis/rik.dev/v1alpha1/nodes":
		fmt.Fprint(w, `{"kind":"NodeList","apiVersion":"rik.dev/v1alpha1","metadata":{},"items":[{"metadata":{"name":"n2"}},{"metadata":{"name":"n1"}},{"metadata":{"name":"n3"}}]}`)
		return
	case "/api/v1/namespaces/team/secrets/registry":
		fmt.Fprint(w, `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"registry","namespace":"team"},"data":{".dockerconfigjson":"c2VjcmV0"}}`)
		return
	}
	node, ok := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/apis/rik.dev/v1alpha1/nodes/"), "/images")
	if !ok {
		http.NotFound(w, r)
		return
	}
	s.serve(w, r, node)
}

func refuse(w http.ResponseWriter, code int, reason, message string) {
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"message":%q}`, reason, code, message)
}

func (s *imageServer) serve(w http.ResponseWriter, r *http.Request, node string) {
	query := r.URL.Query()
	line := func(e nodeimage.Event) {
		_ = json.NewEncoder(w).Encode(e)
		w.(http.Flusher).Flush()
	}
	has := func(ref string) int {
		return slices.IndexFunc(s.images[node], func(i nodeimage.Image) bool { return strings.HasSuffix(i.Reference, ref) })
	}
	switch {
	case node == "n3":
		refuse(w, http.StatusServiceUnavailable, "ServiceUnavailable", `node "n3" is not connected`)
	case r.Method == http.MethodGet && query.Has(nodeimage.ParamExport):
		w.Header().Set("Content-Type", nodeimage.MediaTypeArchive)
		fmt.Fprintf(w, "archive of %s", query.Get(nodeimage.ParamExport))
		if query.Get(nodeimage.ParamExport) == "broken:1" {
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
	case r.Method == http.MethodGet:
		_ = json.NewEncoder(w).Encode(nodeimage.List{Items: s.images[node]})
	case r.Method == http.MethodDelete:
		s.mu.Lock()
		defer s.mu.Unlock()
		ref := query.Get(nodeimage.ParamReference)
		switch i := has(ref); {
		case i < 0:
			refuse(w, http.StatusNotFound, "NotFound", "image not present: "+ref)
		case len(s.images[node][i].UsedBy) > 0:
			refuse(w, http.StatusConflict, "Conflict", "image in use: "+ref+" is used by instance "+s.images[node][i].UsedBy[0])
		default:
			s.removed = append(s.removed, node+" "+ref)
			_ = json.NewEncoder(w).Encode(nodeimage.Removed{Reference: "docker.io/library/" + ref, FreedBytes: 3 << 20})
		}
	case query.Has(nodeimage.ParamPull), query.Has(nodeimage.ParamImport):
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.received[node] = string(body)
		s.mu.Unlock()
		if query.Get(nodeimage.ParamPull) == "lost:1" {
			line(nodeimage.Event{Progress: &nodeimage.Progress{Text: "pulling lost:1"}})
			return
		}
		name := cmp.Or(query.Get(nodeimage.ParamPull)+query.Get(nodeimage.ParamImport), "some:1")
		line(nodeimage.Event{Progress: &nodeimage.Progress{Text: "working on \x1b[31m" + name, Bytes: 34 << 20, Total: 120 << 20}})
		line(nodeimage.Event{Image: &nodeimage.Image{Reference: name, Digest: "sha256:abc", Bytes: 5 << 20}})
		if name == "away:1" {
			line(nodeimage.Event{Done: &nodeimage.Done{Error: "dial tcp 192.0.2.1:443: connect: network is unreachable"}})
			return
		}
		if strings.Contains(string(body), "half") {
			line(nodeimage.Event{Failed: &nodeimage.Failure{Error: "no name"}})
			line(nodeimage.Event{Done: &nodeimage.Done{Error: "1 of 2 images were not imported"}})
			return
		}
		line(nodeimage.Event{Done: &nodeimage.Done{}})
	}
}

// newImageServer returns the server, and how to run a command with it.
func newImageServer(t *testing.T) (*imageServer, func(stdin string, args ...string) result) {
	t.Helper()
	s := &imageServer{received: map[string]string{}, images: map[string][]nodeimage.Image{
		"n1": {{Reference: "docker.io/library/app:1", Digest: "sha256:0123456789abcdef", Bytes: 3 << 20, UsedBy: []string{"team/web-1", "team/web-2"}}},
		"n2": {{Reference: "docker.io/library/app:1", Digest: "sha256:0123456789abcdef"}, {Reference: "docker.io/library/evil:1\x1b[31m"}},
	}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: a, cluster: {server: %q}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {}}]\n", server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return s, func(stdin string, args ...string) result {
		m := newMachine(t)
		m.stdin = stdin
		return m.run(t, append([]string{"--kubeconfig", kubeconfig, "image"}, args...)...)
	}
}

func TestImageLs(t *testing.T) {
	t.Parallel()
	_, run := newImageServer(t)
	r := run("", "ls")
	// One node does not answer. The others are shown.
	r.check(t, clierror.ExitUnreachable, "NODE", "n1", "docker.io/library/app:1", "0123456789ab", "3.0 MiB", "team/web-1 and 1 more", "n2", `node "n3" is not connected`)
	if strings.Contains(r.out, "\x1b") || strings.Contains(r.out, "cdef") {
		t.Errorf("the table has control characters or a long digest: %q", r.out)
	}
	r = run("", "ls", "app:1", "--node", "node/n1,n2", "-o", "json")
	r.check(t, clierror.ExitOK)
	var list struct{ Items []map[string]any }
	if err := json.Unmarshal([]byte(r.out), &list); err != nil || len(list.Items) != 2 || list.Items[0]["node"] != "n1" || list.Items[0]["digest"] != "sha256:0123456789abcdef" {
		t.Errorf("-o json = %s, %v", r.out, err)
	}
	run("", "ls", "none:1", "--node", "n1").check(t, clierror.ExitNotFound, `no node has the image "none:1"`)
}

func TestImagePull(t *testing.T) {
	t.Parallel()
	s, run := newImageServer(t)
	r := run("", "pull", "app:1", "--secret", "registry", "-n", "team", "--node", "n1", "--node", "n2")
	r.check(t, clierror.ExitOK, "node/n1: pulled app:1 (sha256:abc, 5.0 MiB)", "node/n2: pulled app:1", "node/n1: working on ^[[31mapp:1: 34.0 MiB of 120.0 MiB\n")
	if got := s.received["n1"]; got != `{"dockerconfigjson":"c2VjcmV0"}` {
		t.Errorf("the node received %q, want the Secret", got)
	}
	run("", "pull", "app:1").check(t, clierror.ExitUnreachable, "node n3", "is not connected", "node/n1: pulled app:1")
	run("", "pull", "lost:1", "--node", "n1").check(t, clierror.ExitError, "node n1: the connection was lost before the end")
	// The node cannot reach the registry. That is not about the server.
	if r := run("", "pull", "away:1", "--node", "n1"); r.code != clierror.ExitError || strings.Contains(r.err, "next:") {
		t.Errorf("a registry that the node does not reach = %+v, want no advice about the server", r)
	}
	run("", "pull", "app:1", "--secret", "none", "-n", "team").check(t, clierror.ExitNotFound)
	r = run("", "pull", "app:1", "--node", "n1", "-o", "json")
	r.check(t, clierror.ExitOK)
	var kinds []string
	for line := range strings.Lines(r.out) {
		var e struct {
			Node string
			nodeimage.Event
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Node != "n1" {
			t.Errorf("line %q: %v", line, err)
		}
		kinds = append(kinds, fmt.Sprint(e.Progress != nil, e.Image != nil, e.Done != nil))
	}
	if want := []string{"true false false", "false true false", "false false true"}; !slices.Equal(kinds, want) || r.err != "" {
		t.Errorf("-o json = %s, and %q on the error stream", r.out, r.err)
	}
}

func TestImageImport(t *testing.T) {
	t.Parallel()
	s, run := newImageServer(t)
	archive := strings.Repeat("archive ", 100_000)
	file := filepath.Join(t.TempDir(), "a.tar")
	if err := os.WriteFile(file, []byte(archive), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, line := range [][]string{{archive, "-"}, {"", file}} {
		s.received = map[string]string{}
		r := run(line[0], "import", line[1], "--name", "app:1", "--node", "n1,n2")
		r.check(t, clierror.ExitOK, "node/n1: imported app:1", "node/n2: imported app:1")
		for _, node := range []string{"n1", "n2"} {
			if s.received[node] != archive {
				t.Errorf("from %q node %s received %d bytes, want %d", line[1], node, len(s.received[node]), len(archive))
			}
		}
	}
	// A node that fails does not keep the archive from the others.
	s.received = map[string]string{}
	run(archive, "import", "-").check(t, clierror.ExitUnreachable, "node n3", "node/n1: imported", "node/n2: imported")
	if s.received["n2"] != archive {
		t.Errorf("when another node fails, n2 received %d bytes", len(s.received["n2"]))
	}
	run("half", "import", "-", "--node", "n1").check(t, clierror.ExitError, "node/n1: not imported: no name", "node n1: 1 of 2 images were not imported")
	run("", "import", filepath.Join(t.TempDir(), "none")).check(t, clierror.ExitUsage, "no such file")
}

func TestImageExport(t *testing.T) {
	t.Parallel()
	_, run := newImageServer(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "app.tar")
	run("", "export", "app:1", file).check(t, clierror.ExitOK, "node/n1: exported app:1")
	if data, err := os.ReadFile(file); err != nil || string(data) != "archive of app:1" {
		t.Errorf("the file has %q, %v", data, err)
	}
	run("", "export", "app:1", file, "--node", "n2").check(t, clierror.ExitUsage, "exists")
	if r := run("", "export", "app:1", "-", "--node", "n2"); r.code != clierror.ExitOK || r.out != "archive of app:1" {
		t.Errorf("export to the output = %+v", r)
	}
	run("", "export", "broken:1", filepath.Join(dir, "broken.tar"), "--node", "n1").check(t, clierror.ExitError, "exporting broken:1 of node n1")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("an export that breaks leaves %v", entries)
	}
	run("", "export", "none:1", "-").check(t, clierror.ExitNotFound, `no node has the image "none:1"`)
}

func TestImageRm(t *testing.T) {
	t.Parallel()
	s, run := newImageServer(t)
	r := run("", "rm", "app:1", "--node", "n1,n2")
	r.check(t, clierror.ExitConflict, "app:1 is used by instance team/web-1", "node/n2: removed docker.io/library/app:1 (3.0 MiB freed)")
	if !slices.Equal(s.removed, []string{"n2 app:1"}) {
		t.Errorf("removed %v", s.removed)
	}
	delete(s.images, "n1")
	run("", "rm", "app:1", "--node", "n1").check(t, clierror.ExitNotFound, "image not present")
	run("", "rm", "app:1", "none:1").check(t, clierror.ExitUnreachable, "node/n2: removed", "is not connected")
}

// A stream without a reader does not block the command.
func TestImageImportGivesUpOnAllNodes(t *testing.T) {
	t.Parallel()
	_, run := newImageServer(t)
	run(string(bytes.Repeat([]byte("x"), 10<<20)), "import", "-", "--node", "n3").check(t, clierror.ExitUnreachable, "is not connected")
}
