package e2e

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedDemoCommand runs "rik demo" with its own directories, from no server to an
// application that answers, and removes it.
func TestPrivilegedDemoCommand(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	dir, err := os.MkdirTemp("/var/tmp", "rik-e2e-sample-")
	if err != nil {
		t.Fatal(err)
	}
	images, data := filepath.Join(dir, "images"), filepath.Join(dir, "data")
	node := []string{"--state-dir", filepath.Join(dir, "state"), "--run-dir", filepath.Join(dir, "run"), "--cgroup-parent", "/" + filepath.Base(dir), "--vmm", "none"}
	server := append([]string{"--", "--data-dir", data, "--node-name", "n1"}, node...)
	demo := func(flags ...string) []string {
		return append(append([]string{"demo", "--image-dir", images}, flags...), server...)
	}
	t.Cleanup(func() {
		if out := rikcluster.Run(t, "rik", append([]string{"purge"}, node...)...); out.Err != nil {
			t.Error(out.Err)
		}
		if mounts, processes, groups := rikcluster.Mounts(dir), rikcluster.Processes(dir), rikcluster.Cgroups(filepath.Base(dir)); len(mounts)+len(processes)+len(groups) > 0 {
			t.Errorf("the demo left mounts %q, processes %v, cgroups %q", mounts, processes, groups)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})

	// The port of the API belongs to another program.
	const api = "127.0.0.1:5000"
	taken := listen(t, api)
	out := rikcluster.Run(t, "rik", demo("--timeout", "30s")...)
	if out.Code != 1 || !strings.Contains(out.Stderr, "opening port 5000") || !strings.Contains(out.Stderr, "e2e.test") {
		t.Fatalf("rik demo without a port for the server: %d, %v", out.Code, out.Err)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}

	// A demo that starts a server continues until it is stopped.
	log := filepath.Join(dir, "log")
	first := rikcluster.StartProcess(t, "demo", log, filepath.Join(rikcluster.Bin(t), "rik"), demo("-o", "json")...)
	var result struct {
		URL, Workload, Node, Config string
		Foreground                  bool
		Instances                   []string
	}
	rikcluster.Eventually(t, rikcluster.Timeout, func() error {
		if err := first.Alive(); err != nil {
			t.Fatalf("%v\n%s", err, first.Tail())
		}
		for line := range strings.Lines(first.Tail()) {
			if strings.HasPrefix(line, "{") {
				return json.Unmarshal([]byte(line), &result)
			}
		}
		return errors.New("it printed no result yet:\n" + first.Tail())
	})
	if result.URL != "http://127.0.0.1:30080/" || result.Workload != "hello" || result.Node != "n1" || result.Config != filepath.Join(data, "config.yaml") || !result.Foreground || len(result.Instances) != 2 {
		t.Errorf("the result is %+v", result)
	}
	answers(t, result.URL)
	for _, step := range []string{"starting a server", "wrote the image", "creating the workload", "Running"} {
		if !strings.Contains(first.Tail(), step) {
			t.Errorf("the steps do not say %q:\n%s", step, first.Tail())
		}
	}

	// A second demo uses that server, and replaces no instance.
	again := rikcluster.Run(t, "rik", demo()...)
	if again.Err != nil || !strings.Contains(again.Stdout, "using the server of this machine") || !strings.Contains(again.Stdout, "curl "+result.URL) || strings.Contains(again.Stdout, "Ctrl-C") {
		t.Errorf("a second demo: %v\n%s", again.Err, again.Stdout)
	}
	for _, name := range result.Instances {
		if !strings.Contains(again.Stdout, name+": Running") {
			t.Errorf("the second demo does not show the instance %s of the first:\n%s", name, again.Stdout)
		}
	}
	// Another program has the port.
	taken = listen(t, "0.0.0.0:30081")
	if out := rikcluster.Run(t, "rik", demo("--name", "other", "--port", "30081")...); out.Code != 1 || !strings.Contains(out.Stderr, "opening port 30081") || !strings.Contains(out.Stderr, "choose another port with --port") {
		t.Errorf("rik demo with a port that is in use: %d, %v", out.Code, out.Err)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}

	// Its end stops the server, and no instance.
	first.Stop()
	if code := first.Wait(); code != 0 {
		t.Errorf("the demo ended with %d:\n%s", code, first.Tail())
	}
	answers(t, result.URL)

	// The removal starts a server for itself. A second one finds nothing to remove.
	for i, want := range []string{
		"- the demo is removed\n",
		"- there is no demo with the name \"hello\" on this machine, so nothing was removed\n",
	} {
		if out := rikcluster.Run(t, "rik", demo("--down")...); out.Err != nil || !strings.HasSuffix(out.Stdout, want) || i == 1 && out.Stdout != want || out.Stderr != "" {
			t.Fatalf("rik demo --down: %v\n%s%s", out.Err, out.Stdout, out.Stderr)
		}
		if _, err := os.Stat(images); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the images after the removal: %v", err)
		}
		for pid, line := range rikcluster.Processes(dir) {
			if strings.Contains(line, "shim") {
				t.Errorf("the removal left the instance's process %d: %s", pid, line)
			}
		}
	}
}

// listen holds a port until the test ends.
func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	socket, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	return socket
}

// answers fails the test unless the sample application answers.
func answers(t *testing.T, url string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Error(err)
		return
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || !strings.HasPrefix(string(text), "hello from hello-") {
		t.Errorf("%s answers %q, %v", url, text, err)
	}
}
