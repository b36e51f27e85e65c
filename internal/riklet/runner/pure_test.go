package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
	"rik.dev/rik/internal/riklet/progress"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/state"
)

// A variable cannot contain a NUL byte. If the riklet left it out, it would be missing without an
// error.
func TestVariablesWithANULAreRefused(t *testing.T) {
	t.Parallel()
	o := &objects{configMaps: map[string]map[string][]byte{"cm": {"bad": []byte("a\x00b"), "good": []byte("x")}}}
	o.secrets = o.configMaps
	d := &Driver{cfg: Config{Objects: o}}
	key := func(name string) *rikv1alpha1.KeyRef { return &rikv1alpha1.KeyRef{Name: "cm", Key: name} }
	for name, tc := range map[string]struct {
		c  rikv1alpha1.Container
		ok bool
	}{
		"a Secret's key":      {rikv1alpha1.Container{Env: []rikv1alpha1.EnvVar{{Name: "V", ValueFrom: &rikv1alpha1.EnvVarSource{SecretKeyRef: key("bad")}}}}, false},
		"a ConfigMap's key":   {rikv1alpha1.Container{Env: []rikv1alpha1.EnvVar{{Name: "V", ValueFrom: &rikv1alpha1.EnvVarSource{ConfigMapKeyRef: key("bad")}}}}, false},
		"all keys":            {rikv1alpha1.Container{EnvFrom: []rikv1alpha1.EnvFromSource{{Secret: "cm"}}}, false},
		"another of the keys": {rikv1alpha1.Container{Env: []rikv1alpha1.EnvVar{{Name: "V", ValueFrom: &rikv1alpha1.EnvVarSource{SecretKeyRef: key("good")}}}}, true},
	} {
		_, err := d.environment(t.Context(), instance.Instance{}, "", tc.c)
		var config *engine.ConfigError
		if tc.ok != (err == nil) || err != nil && (!errors.As(err, &config) || !strings.Contains(err.Error(), "NUL byte")) {
			t.Errorf("%s: environment() = %v", name, err)
		}
	}
}

// Linux accepts no variable of 128 KiB: the start of the container would fail without the name of
// the variable.
func TestVariablesRefusedByTheKernelAreNamed(t *testing.T) {
	t.Parallel()
	o := &objects{configMaps: map[string]map[string][]byte{"cm": {"fits": bytes.Repeat([]byte("x"), 128<<10-3), "long": bytes.Repeat([]byte("x"), 128<<10-2)}}}
	d := &Driver{cfg: Config{Objects: o}}
	from := func(key string) rikv1alpha1.Container {
		return rikv1alpha1.Container{Env: []rikv1alpha1.EnvVar{{Name: "V", ValueFrom: &rikv1alpha1.EnvVarSource{ConfigMapKeyRef: &rikv1alpha1.KeyRef{Name: "cm", Key: key}}}}}
	}
	if _, err := d.environment(t.Context(), instance.Instance{}, "", from("fits")); err != nil {
		t.Errorf("the longest variable: %v", err)
	}
	_, err := d.environment(t.Context(), instance.Instance{}, "", from("long"))
	var config *engine.ConfigError
	if !errors.As(err, &config) || !strings.Contains(err.Error(), "variable V") || !strings.Contains(err.Error(), "mount it as a file") {
		t.Errorf("a longer one: %v", err)
	}
}

// A probe follows redirects only within the instance.
func TestRedirectsOfProbes(t *testing.T) {
	t.Parallel()
	request := func(address string) *http.Request { return httptest.NewRequest(http.MethodGet, address, nil) }
	first := request("http://127.0.0.1:80/")
	for address, follow := range map[string]bool{
		"http://127.0.0.1:80/ready": true, "https://127.0.0.1:443/": true,
		"http://169.254.169.254/": false, "http://example.org/": false, "http://localhost/": false,
	} {
		err := followRedirect(request(address), []*http.Request{first})
		if follow && err != nil || !follow && !errors.Is(err, http.ErrUseLastResponse) {
			t.Errorf("%s: followRedirect() = %v, want it followed: %t", address, err, follow)
		}
	}
	if err := followRedirect(request("http://127.0.0.1/"), slices.Repeat([]*http.Request{first}, maxRedirects)); err == nil {
		t.Error("redirects have no end")
	}
}

func TestNamesThatWouldBePathsAreRefused(t *testing.T) {
	t.Parallel()
	d := unopened(Config{Runtimes: map[string]string{"crun": "/usr/bin/crun"}})
	good := podOf("u1", rikv1alpha1.RestartAlways, rikv1alpha1.Container{Name: "main"})
	if err := d.validate(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*instance.Instance){
		"uid":            func(in *instance.Instance) { in.UID = "../x" },
		"long uid":       func(in *instance.Instance) { in.UID = "0123456789012345678901234567890123456" },
		"container":      func(in *instance.Instance) { in.Template.Containers[0].Name = "a/b" },
		"same container": func(in *instance.Instance) { in.Template.InitContainers = in.Template.Containers },
		"volume":         func(in *instance.Instance) { in.Template.Volumes = []rikv1alpha1.Volume{{Name: ".."}} },
		"runtime":        func(in *instance.Instance) { in.Template.Runtime = "kata" },
		"kind":           func(in *instance.Instance) { in.Template.Kind = rikv1alpha1.KindApp },
		"no containers":  func(in *instance.Instance) { in.Template.Containers = nil },
	} {
		in := podOf("u1", rikv1alpha1.RestartAlways, rikv1alpha1.Container{Name: "main"})
		if change(&in); d.validate(in) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestProbeCounter(t *testing.T) {
	t.Parallel()
	p := rikv1alpha1.Probe{SuccessThreshold: 2, FailureThreshold: 3}
	var n counter
	var verdicts []bool
	for _, ok := range []bool{true, true, true, false, false, true, false, false, false} {
		var due bool
		n, due = n.add(ok, p)
		verdicts = append(verdicts, due)
	}
	if diff := cmp.Diff([]bool{false, true, true, false, false, false, false, false, true}, verdicts); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
}

// TestLongTextsAreCut checks that long texts are truncated. A status passes through the scheduler
// and the API server, and an instance, a guest or a server must not be able to block them.
func TestLongTextsAreCut(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ä", 1<<20)
	m, now := serving()
	m.setContainer("main", exited(m.rec.Containers["main"], 1, reasonError, long, *now))
	m.trouble, m.prepared = long, false
	s := m.render()
	texts := []string{s.Message}
	for _, c := range s.Containers {
		texts = append(texts, c.Message, c.LastState.Message)
	}
	for _, text := range texts {
		if len(text) == 0 || len(text) > maxReported+3 || !utf8.ValidString(text) {
			t.Errorf("a text of a status has %d bytes: %.20q", len(text), text)
		}
	}
}

// TestRepeatedTextsAreEqual checks that messages do not contain local ports, which differ each
// time.
func TestRepeatedTextsAreEqual(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"lookup r.example on 10.0.0.53:53: read udp 10.0.0.1:40001->10.0.0.53:53: i/o timeout":   "lookup r.example on 10.0.0.53:53: read udp 10.0.0.53:53: i/o timeout",
		"write udp4 127.0.0.1:5->127.0.0.53:53: refused; read tcp 1.2.3.4:9->5.6.7.8:443: reset": "write udp4 127.0.0.53:53: refused; read tcp 5.6.7.8:443: reset",
		"read tcp6 [fe80::1%eth0]:40001->[2001:db8::1]:443: reset":                               "read tcp6 [2001:db8::1]:443: reset",
		"dial tcp 10.0.0.1:443: connect: connection refused":                                     "dial tcp 10.0.0.1:443: connect: connection refused",
		"ports 80->8080": "ports 80->8080",
	} {
		if got := reported(text); got != want {
			t.Errorf("reported(%q) = %q, want %q", text, got, want)
		}
	}
}

// TestTextsHaveNoControlCharacters checks that messages contain no control characters. Some
// messages quote a guest's console.
func TestTextsHaveNoControlCharacters(t *testing.T) {
	t.Parallel()
	m, now := serving()
	m.setContainer("main", exited(m.rec.Containers["main"], 1, reasonError, "a\x1b[2J\u009bb\r\x00ü\u202ec", *now))
	if got, want := m.render().Containers[0].LastState.Message, "a?[2J?b??ü?c"; got != want {
		t.Errorf("the message is %q, want %q", got, want)
	}
}

// answering is an engine whose instances answer every connection with a text.
type answering struct {
	engine.Sessions
	text string
}

func (a answering) Dial(context.Context, engine.Running, int32) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		_, _ = theirs.Read(make([]byte, 4<<10))
		_, _ = io.WriteString(theirs, a.text)
	}()
	return ours, nil
}

// TestProbesLimitQuotedText checks the size of a probe error: net/http quotes a whole line
// that it cannot parse.
func TestProbesLimitQuotedText(t *testing.T) {
	t.Parallel()
	m, _ := serving()
	m.engine = &engine.Engine{Sessions: answering{text: "HTTP/1.1 " + strings.Repeat("\x01", 1<<20) + "\r\n\r\n"}}
	err := m.container("main").ask(t.Context(), rikv1alpha1.Probe{HTTP: &rikv1alpha1.HTTPProbe{Port: 80}, TimeoutSeconds: 60})
	if err == nil || len(err.Error()) > maxAnswer {
		t.Errorf("the probe failed with %d bytes of text, want few: %.100v", len(fmt.Sprint(err)), err)
	}
}

func TestSelectFiles(t *testing.T) {
	t.Parallel()
	data := map[string][]byte{"good.txt": []byte("1"), "../bad": []byte("2"), "..data": []byte("3"), "a/b": []byte("4")}
	got, err := selectFiles(data, rikv1alpha1.ObjectVolume{Name: "cm"})
	if err != nil || len(got) != 1 || string(got["good.txt"]) != "1" {
		t.Errorf("selectFiles() = %v, %v", got, err)
	}
	for _, path := range []string{"../out", "/abs", "..data", "a/../../b", ""} {
		if got, err := selectFiles(data, rikv1alpha1.ObjectVolume{Items: []rikv1alpha1.KeyToPath{{Key: "good.txt", Path: path}}}); err == nil {
			t.Errorf("path %q gives %v", path, got)
		}
	}
}

// The instance that exceeds its request most is evicted first, and an instance of higher priority
// last.
func TestEvictionOrder(t *testing.T) {
	t.Parallel()
	use := func(uid string, priority int32, used, requested int64) diskUse {
		return diskUse{&machine{uid: uid}, priority, used, requested}
	}
	for name, tc := range map[string]struct {
		uses []diskUse
		want string
	}{
		"nobody":                  {nil, ""},
		"within their requests":   {[]diskUse{use("a", 0, 5, 5), use("b", 0, 0, 0), use("c", 0, 3, 9)}, ""},
		"the most":                {[]diskUse{use("a", 0, 5, 0), use("b", 0, 7, 0), use("c", 0, 6, 0)}, "b"},
		"the most beyond":         {[]diskUse{use("a", 0, 50, 48), use("b", 0, 7, 0)}, "b"},
		"the lowest priority":     {[]diskUse{use("a", 10, 50, 0), use("b", 1, 7, 0)}, "b"},
		"a high one if it is all": {[]diskUse{use("a", 10, 50, 0), use("b", 1, 7, 8)}, "a"},
	} {
		got, found := evictable(tc.uses)
		if found != (tc.want != "") || found && got.m.uid != tc.want {
			t.Errorf("%s: evictable() = %+v, %t, want %q", name, got, found, tc.want)
		}
	}
}

// The status shows the progress of a slow pull instead of the failure of the last attempt.
func TestPullingIsShown(t *testing.T) {
	t.Parallel()
	m, _ := serving()
	c := m.container("main")
	m.rec.Containers["main"] = startDelayed(state.Container{}, reasonImagePull, "the registry is away", m.now())
	c.starting, c.pulling = true, progress.Progress{What: "pulling a:v1", Bytes: 1 << 20, Total: 4 << 20}.String()
	for _, want := range []struct{ reason, message string }{
		{reasonPulling, "pulling a:v1: 1.0 MiB of 4.0 MiB"}, {reasonImagePull, "the registry is away"},
	} {
		s := m.render()
		if got := s.Containers[0]; got.State != rikv1alpha1.ContainerWaiting || got.Reason != want.reason || got.Message != want.message {
			t.Errorf("container = %+v, want %+v", got, want)
		}
		if s.Reason != want.reason || s.Message != ofContainer("main", want.message) {
			t.Errorf("status = %+v, want %+v", s, want)
		}
		c.pulling = ""
	}
	// In a microVM, the pull is part of the preparation.
	m.prepared, m.trouble, m.reason, m.pulling = false, "the registry is away", reasonImagePull, "pulling a:v1: waiting for the registry"
	if s := m.render(); s.Reason != reasonPulling || s.Message != m.pulling {
		t.Errorf("status = %+v", s)
	}
}

// A container that never ran has no log, and the error contains the reason.
func TestNoLogBeforeTheStart(t *testing.T) {
	t.Parallel()
	m, _ := serving()
	m.d.cfg.Changed = func() {}
	m.publish()
	if err := m.neverStarted("main"); err != nil {
		t.Errorf("of a container that runs: %v", err)
	}
	m.rec.Containers["main"] = startDelayed(state.Container{}, reasonImagePull, "the registry is away", m.now())
	m.publish()
	if err := m.neverStarted("main"); err == nil || !strings.Contains(err.Error(), `container "main" has not started: ImagePullFailed: the registry is away`) {
		t.Errorf("of one that waits for its image: %v", err)
	}
	if err := m.neverStarted(engine.VMM); err != nil {
		t.Errorf("of the console: %v", err)
	}
	again := startDelayed(state.Container{}, reasonImagePull, "the registry is away", m.now())
	again.Restarts, again.StartedAt = 1, m.now()
	m.rec.Containers["main"] = again
	m.publish()
	if err := m.neverStarted("main"); err != nil {
		t.Errorf("of one that ran before: %v", err)
	}
}

// slowBuilder is the part of an engine with a slow fetch.
type slowBuilder struct{ engine.Builder }

func (slowBuilder) Container(*engine.Attempt) engine.Steps {
	return engine.Steps{Image: lifecycle.Step{Do: func(ctx context.Context) error {
		progress.Of(ctx).Begin(progress.Progress{What: "downloading u", Total: 1 << 20})
		time.Sleep(5 * time.Second) // in the bubble
		return errors.New("the server is away")
	}}}
}

// The progress of a fetch is reported, for every kind of instance.
func TestFetchingIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got []string
		f := &fill{d: &Driver{}, engine: &engine.Engine{Builder: slowBuilder{}}, report: func(p progress.Progress) { got = append(got, p.String()) }}
		if _, err := f.run(t.Context()); err == nil || !strings.Contains(err.Error(), "the server is away") {
			t.Errorf("run = %v", err)
		}
		if want := []string{"downloading u: 0.0 MiB of 1.0 MiB"}; !slices.Equal(got, want) {
			t.Errorf("reports = %q, want %q", got, want)
		}
	})
}
