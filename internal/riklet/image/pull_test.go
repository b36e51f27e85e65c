package image

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/ociimage"
	"rik.dev/rik/internal/riklet/progress"
)

// A tag in a directory of the node that was rebuilt is read again, unless the policy forbids
// reading.
func TestPullDetectsARebuiltImage(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	s := open(t, nil)
	for ref, write := range map[string]func(ociimage.Spec) (string, error){
		"oci:" + tmp + "/layout:v1": func(spec ociimage.Spec) (string, error) { return ociimage.Write(tmp+"/layout", "v1", spec) },
		"dir:" + tmp + "/dir": func(spec ociimage.Spec) (string, error) {
			if err := os.RemoveAll(tmp + "/dir"); err != nil {
				return "", err
			}
			return ociimage.WriteDir(tmp+"/dir", spec)
		},
	} {
		pull := func(policy v1alpha1.PullPolicy, want string) {
			t.Helper()
			img, err := s.Pull(t.Context(), PullRequest{Reference: ref, Policy: policy})
			if err != nil || img.Digest != want {
				t.Errorf("Pull(%s, %q) = %+v, %v, want %s", ref, policy, img, err, want)
			}
		}
		first, err := write(small())
		if err != nil {
			t.Fatal(err)
		}
		pull("", first)
		changed := small()
		changed.Env = append(changed.Env, "CHANGED=1")
		second, err := write(changed)
		if err != nil || second == first {
			t.Fatalf("the image is the same: %v", err)
		}
		pull(v1alpha1.PullNever, first)
		pull(v1alpha1.PullIfNotPresent, second) // the API server's default
		third, err := write(small())
		if err != nil {
			t.Fatal(err)
		}
		pull("", third)
	}
	if err := os.RemoveAll(tmp); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Pull(t.Context(), PullRequest{Reference: "oci:" + tmp + "/layout:v1"}); err != nil {
		t.Errorf("Pull() of an image that is here, without its directory = %v", err)
	}
}

func TestPullAcceptsImagesFor386(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("the processor is no amd64")
	}
	spec := small()
	spec.Architecture = "386"
	_, ref, _ := layout(t, spec)
	img, err := open(t, nil).Pull(t.Context(), PullRequest{Reference: ref})
	if err != nil || img.Architecture != "386" {
		t.Errorf("Pull() = %+v, %v, want an image of 386", img, err)
	}
	spec.Architecture = "arm"
	_, ref, _ = layout(t, spec)
	if _, err := open(t, nil).Pull(t.Context(), PullRequest{Reference: ref}); !errors.Is(err, ErrPlatform) {
		t.Errorf("Pull() of an image of arm = %v, want ErrPlatform", err)
	}
}

func TestPullFromEveryLocalTransport(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	write := map[string]func() (string, error){
		"oci:" + tmp + "/layout:v1":        func() (string, error) { return ociimage.Write(tmp+"/layout", "v1", small()) },
		"oci:" + tmp + "/single":           func() (string, error) { return ociimage.Write(tmp+"/single", "v1", small()) },
		"oci-archive:" + tmp + "/a.tar:v1": func() (string, error) { return ociimage.WriteArchive(tmp+"/a.tar", "v1", small()) },
		"docker-archive:" + tmp + "/d.tar": func() (string, error) {
			return ociimage.WriteDockerArchive(tmp+"/d.tar", "example.com/app:1", small())
		},
		"docker-archive:" + tmp + "/e.tar:example.com/app:1": func() (string, error) {
			return ociimage.WriteDockerArchive(tmp+"/e.tar", "example.com/app:1", small())
		},
		"dir:" + tmp + "/dir": func() (string, error) { return ociimage.WriteDir(tmp+"/dir", small()) },
	}
	s := open(t, nil)
	for ref, make := range write {
		want, err := make()
		if err != nil {
			t.Fatal(err)
		}
		img, err := s.Pull(t.Context(), PullRequest{Reference: ref})
		if err != nil {
			t.Errorf("Pull(%s): %v", ref, err)
			continue
		}
		if !strings.HasPrefix(ref, "docker-archive") && img.Digest != want {
			t.Errorf("Pull(%s): digest %s, want %s", ref, img.Digest, want)
		}
		if diff := cmp.Diff([]string{"/bin/app"}, img.Config.Entrypoint); diff != "" {
			t.Errorf("Pull(%s): entrypoint (-want +got):\n%s", ref, diff)
		}
		if len(img.Layers) != 2 {
			t.Fatalf("Pull(%s): %d layers, want 2", ref, len(img.Layers))
		}
		got, err := os.ReadFile(filepath.Join(img.Layers[1], "etc/motd"))
		if err != nil || string(got) != "hello again\n" {
			t.Errorf("Pull(%s): motd of the upper layer = %q, %v", ref, got, err)
		}
	}
	// All of them have the same two layers.
	requireNothingLeft(t, s, 2)
	if got := len(s.Images()); got != len(write) {
		t.Errorf("Images lists %d, want %d", got, len(write))
	}
}

func TestPullReadsEveryCompression(t *testing.T) {
	t.Parallel()
	for _, c := range []ociimage.Compression{ociimage.Gzip, ociimage.Zstd, ociimage.Uncompressed} {
		t.Run(string(c), func(t *testing.T) {
			t.Parallel()
			_, ref, _ := layout(t, ociimage.Spec{Layers: []ociimage.Layer{{
				Compression: c, Files: map[string]ociimage.File{"f": {Content: []byte(strings.Repeat("content ", 10000))}},
			}}})
			img, err := open(t, nil).Pull(t.Context(), PullRequest{Reference: ref})
			if err != nil {
				t.Fatal(err)
			}
			if fi, err := os.Stat(filepath.Join(img.Layers[0], "f")); err != nil || fi.Size() != 80000 {
				t.Errorf("f: %v, %v; want 80000 bytes", fi, err)
			}
		})
	}
}

func TestPullFollowsThePolicy(t *testing.T) {
	t.Parallel()
	s := open(t, nil)
	dir, ref, first := layout(t, small())
	if _, err := s.Pull(t.Context(), PullRequest{Reference: ref, Policy: v1alpha1.PullNever}); !errors.Is(err, ErrNotPresent) {
		t.Fatalf("Never, before the image is present: %v, want %v", err, ErrNotPresent)
	}
	pull := func(p v1alpha1.PullPolicy) string {
		t.Helper()
		img, err := s.Pull(t.Context(), PullRequest{Reference: ref, Policy: p})
		if err != nil {
			t.Fatal(err)
		}
		return img.Digest
	}
	if got := pull(""); got != first {
		t.Fatalf("the default policy pulled %s, want %s", got, first)
	}
	changed := small()
	changed.Env = []string{"A=2"}
	second, err := ociimage.Write(dir, "v1", changed)
	if err != nil {
		t.Fatal(err)
	}
	if got := pull(v1alpha1.PullNever); got != first {
		t.Errorf("policy Never gives %s, want the present image, %s", got, first)
	}
	if got := pull(v1alpha1.PullAlways); got != second {
		t.Errorf("policy Always gives %s, want the new %s", got, second)
	}
	if _, err := s.Pull(t.Context(), PullRequest{Reference: "oci:" + dir + ":v2"}); !errors.Is(err, ErrNotPresent) {
		t.Errorf("a tag that the layout does not have: %v, want %v", err, ErrNotPresent)
	}
}

// A tag of a registry that moved is requested again only if the policy requires it.
func TestPullFollowsThePolicyForARegistry(t *testing.T) {
	t.Parallel()
	s := open(t, nil)
	dir, _, first := layout(t, small())
	ref := registry(t, &ociimage.Registry{Dir: dir}) + "/team/app:v1"
	pull := func(p v1alpha1.PullPolicy, want string) {
		t.Helper()
		img, err := s.Pull(t.Context(), PullRequest{Reference: ref, Policy: p})
		if err != nil || img.Digest != want {
			t.Errorf("Pull(%q) = %+v, %v, want %s", p, img, err, want)
		}
	}
	pull("", first)
	changed := small()
	changed.Env = []string{"A=2"}
	second, err := ociimage.Write(dir, "v1", changed)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []v1alpha1.PullPolicy{v1alpha1.PullNever, v1alpha1.PullIfNotPresent, ""} {
		pull(p, first)
	}
	pull(v1alpha1.PullAlways, second)
}

func TestImagesSurviveARestart(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "store")
	s := openAt(t, root, nil)
	_, ref, _ := layout(t, small())
	want, err := s.Pull(t.Context(), PullRequest{Reference: ref})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Root: root, Unpacker: []string{"x"}}); !errors.Is(err, ErrLocked) {
		t.Errorf("a second Open: %v, want %v", err, ErrLocked)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// The state after a crash: an incomplete pull and an incomplete record.
	if err := os.MkdirAll(filepath.Join(root, tmpDir, "pull-1", "0", "fs"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, imagesDir, "torn.json"), []byte(`{"Refer`), 0o600); err != nil {
		t.Fatal(err)
	}
	s = openAt(t, root, nil)
	requireNothingLeft(t, s, 2)
	got, err := s.Pull(t.Context(), PullRequest{Reference: ref, Policy: v1alpha1.PullNever})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("image after a restart (-before +after):\n%s", diff)
	}
	if len(s.Images()) != 1 {
		t.Errorf("Images = %v, want one", s.Images())
	}
}

func TestPullChoosesThePlatform(t *testing.T) {
	t.Parallel()
	foreign := small()
	foreign.Architecture = "s390x"
	dir := t.TempDir()
	want, err := ociimage.WriteIndex(dir, "both", foreign, small())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ociimage.WriteIndex(dir, "foreign", foreign); err != nil {
		t.Fatal(err)
	}
	if _, err := ociimage.Write(dir, "bare", foreign); err != nil {
		t.Fatal(err)
	}
	s := open(t, nil)
	img, err := s.Pull(t.Context(), PullRequest{Reference: "oci:" + dir + ":both"})
	if err != nil || img.Digest != want {
		t.Errorf("index with this platform: %v, %v; want %s", img, err, want)
	}
	for _, tag := range []string{"foreign", "bare"} {
		_, err := s.Pull(t.Context(), PullRequest{Reference: "oci:" + dir + ":" + tag})
		if !errors.Is(err, ErrPlatform) {
			t.Errorf("%s: %v, want %v", tag, err, ErrPlatform)
		}
	}
}

// registry serves r on loopback and returns its host:port.
func registry(tb testing.TB, r http.Handler) string {
	tb.Helper()
	srv := httptest.NewServer(r)
	tb.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

// Pulls do not use the credentials of the user who runs the node, unless the node is configured
// to.
func TestTheNodesOwnCredentialsAreOptIn(t *testing.T) {
	t.Parallel()
	dir, _, digest := layout(t, small())
	host := registry(t, &ociimage.Registry{Dir: dir, Username: "ann", Password: "s3cret"})
	text := fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, host, base64.StdEncoding.EncodeToString([]byte("ann:s3cret")))
	home := os.Getenv("HOME") // set by TestMain
	files := []string{filepath.Join(home, ".docker", "config.json"), filepath.Join(home, ".config", "containers", "auth.json"), filepath.Join(home, "containers", "auth.json"), filepath.Join(home, ".dockercfg")}
	for _, file := range files {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, text, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := open(t, nil).Pull(t.Context(), PullRequest{Reference: host + "/team/app:v1"}); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("a pull without a secret = %v, want ErrUnauthorized", err)
	}
	s := open(t, func(c *Config) { c.AuthFile = files[0] })
	if img, err := s.Pull(t.Context(), PullRequest{Reference: host + "/team/app:v1"}); err != nil || img.Digest != digest {
		t.Errorf("a pull with the node's credentials = %v, %v", img, err)
	}
}

func TestPullFromARegistry(t *testing.T) {
	t.Parallel()
	dir, _, digest := layout(t, small())
	reg := &ociimage.Registry{Dir: dir, Username: "ann", Password: "s3cret"}
	host := registry(t, reg)
	auth := func(key, user string) []byte {
		pair := base64.StdEncoding.EncodeToString([]byte(user + ":s3cret"))
		return fmt.Appendf(nil, `{"auths":{"elsewhere.example":{"auth":"eDp5"},%q:{"auth":%q}},"credHelpers":{%q:"must-not-run"}}`, key, pair, host)
	}
	s := open(t, nil)
	for name, tc := range map[string]struct {
		ref  string
		auth []byte
		want error
	}{
		"by tag":            {host + "/team/app:v1", auth(host, "ann"), nil},
		"by digest":         {"docker://" + host + "/team/app@" + digest, auth("https://"+host+"/v2/", "ann"), nil},
		"by path":           {host + "/other/app:v1", auth(host+"/other", "ann"), nil},
		"without a secret":  {host + "/team/none:v1", nil, ErrUnauthorized},
		"with a wrong one":  {host + "/team/wrong:v1", auth(host, "bob"), ErrUnauthorized},
		"unknown tag":       {host + "/team/app:v2", auth(host, "ann"), ErrNotPresent},
		"unknown digest":    {host + "/team/app@" + someDigest, auth(host, "ann"), ErrNotPresent},
		"secret is no JSON": {host + "/team/x:v1", []byte("ann:s3cret"), nil},
	} {
		img, err := s.Pull(t.Context(), PullRequest{Reference: tc.ref, Policy: v1alpha1.PullAlways, Auth: tc.auth})
		switch {
		case name == "secret is no JSON":
			if err == nil || !strings.Contains(err.Error(), "dockerconfigjson") || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%s: %v, want an error that does not quote it", name, err)
			}
		case tc.want != nil:
			if !errors.Is(err, tc.want) {
				t.Errorf("%s: %v, want %v", name, err, tc.want)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case img.Digest != digest:
			t.Errorf("%s: digest %s, want %s", name, img.Digest, digest)
		}
	}
	// Both layers once, and a configuration for each of the three successful pulls.
	if got := reg.Blobs(); got != 2+3 {
		t.Errorf("%d blobs were transferred, want 5: layers that are here are not asked for", got)
	}
	requireNothingLeft(t, s, 2)
}

func TestPullSharesOneTransfer(t *testing.T) {
	t.Parallel()
	dir, _, _ := layout(t, ociimage.Spec{Files: map[string]ociimage.File{"f": {Content: []byte("x")}}})
	held, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	reg := &ociimage.Registry{Dir: dir, Before: func(repository string) {
		if repository == "slow" {
			once.Do(func() { close(held) })
			<-release
		}
	}}
	host := registry(t, reg)
	answer := sync.OnceFunc(func() { close(release) })
	t.Cleanup(answer) // before the server's Close, which waits for its requests
	s := open(t, nil)
	var wg sync.WaitGroup
	const callers = 4
	errs := make(chan error, callers)
	pull := func() {
		_, err := s.Pull(t.Context(), PullRequest{Reference: host + "/slow:v1"})
		errs <- err
	}
	wg.Go(pull)
	await(t, held, errs)
	for range callers - 1 {
		wg.Go(pull)
	}
	ref, err := parseReference(host + "/slow:v1")
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "all callers to share the pull", func() bool {
		return s.pulls.Waiters(pullKey{ref.String(), sha256.Sum256(nil)}) == callers
	})
	answer()
	wg.Wait()
	for range callers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if got := reg.Blobs(); got != 2 {
		t.Errorf("%d blobs were transferred, want the configuration and the layer once", got)
	}
}

// Fault 19: one pull blocked every other create and delete.
func TestFault19OneSlowPullHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	dir, _, _ := layout(t, small())
	held, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	host := registry(t, &ociimage.Registry{Dir: dir, Before: func(repository string) {
		if repository == "slow" {
			once.Do(func() { close(held) })
			<-release
		}
	}})
	answer := sync.OnceFunc(func() { close(release) })
	t.Cleanup(answer) // before the server's Close, which waits for its requests
	s := open(t, nil)
	slow := make(chan error, 1)
	go func() {
		_, err := s.Pull(t.Context(), PullRequest{Reference: host + "/slow:v1"})
		slow <- err
	}()
	await(t, held, slow)
	// The slow pull cannot end before these calls have returned.
	if _, err := s.Pull(t.Context(), PullRequest{Reference: host + "/quick:v1"}); err != nil {
		t.Errorf("a pull during a slow one: %v", err)
	}
	if _, err := s.Collect(t.Context(), CollectPolicy{Now: time.Now(), MinAge: time.Hour}); err != nil {
		t.Errorf("a collection during a slow pull: %v", err)
	}
	if err := s.Unmount(t.Context(), "never-was", false); err != nil {
		t.Errorf("an unmount during a slow pull: %v", err)
	}
	answer()
	if err := <-slow; err != nil {
		t.Errorf("the slow pull: %v", err)
	}
}

func TestPullEndsWithItsLastCaller(t *testing.T) {
	t.Parallel()
	dir, _, _ := layout(t, small())
	held, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	host := registry(t, &ociimage.Registry{Dir: dir, Before: func(string) {
		once.Do(func() { close(held) })
		<-release
	}})
	t.Cleanup(func() { close(release) }) // before the server's Close waits for its requests
	s := open(t, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.Pull(ctx, PullRequest{Reference: host + "/app:v1"})
		done <- err
	}()
	await(t, held, done)
	why := errors.New("the instance was deleted")
	cancel(why)
	if err := <-done; !errors.Is(err, why) {
		t.Errorf("Pull = %v, want %v", err, why)
	}
	s.pulls.Close() // the child has been waited for
	requireNothingLeft(t, s, 0)
}

func TestPullHasATimeLimit(t *testing.T) {
	t.Parallel()
	dir, _, _ := layout(t, small())
	release := make(chan struct{})
	host := registry(t, &ociimage.Registry{Dir: dir, Before: func(string) { <-release }})
	t.Cleanup(func() { close(release) })
	s := open(t, func(c *Config) { c.Limits.Time = 500 * time.Millisecond })
	if _, err := s.Pull(t.Context(), PullRequest{Reference: host + "/app:v1"}); !errors.Is(err, ErrTimeout) {
		t.Errorf("Pull = %v, want %v", err, ErrTimeout)
	}
	requireNothingLeft(t, s, 0)
}

// A registry that stops sending at any point does not delay a pull for long. Meanwhile the
// progress is reported.
func TestStalledPullFails(t *testing.T) {
	t.Parallel()
	dir, _, _ := layout(t, ociimage.Spec{Files: map[string]ociimage.File{"f": {Content: randomBytes(1 << 20)}}})
	serve := &ociimage.Registry{Dir: dir}
	for name, tc := range map[string]struct {
		stops func(r *http.Request) bool
		says  string
	}{
		"at once":             {func(*http.Request) bool { return true }, "waiting for the registry"},
		"before the manifest": {func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/manifests/") }, "waiting for the registry"},
		"in a layer":          {func(r *http.Request) bool { return false }, " of 1.0 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			release := make(chan struct{})
			host := registry(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if tc.stops(r) {
					<-release
					return
				}
				serve.ServeHTTP(&stopping{ResponseWriter: w, room: 300 << 10, release: release}, r)
			}))
			// This must run before the server's Close, which waits for its requests.
			t.Cleanup(func() { close(release) })
			s := open(t, func(c *Config) { c.Limits.Stall = 4 * time.Second })
			w := &progress.Work{}
			_, err := s.Pull(progress.With(t.Context(), w), PullRequest{Reference: host + "/app:v1"})
			if !errors.Is(err, ErrStalled) || !strings.Contains(err.Error(), "nothing for 4s") {
				t.Errorf("Pull = %v, want %v", err, ErrStalled)
			}
			if p := w.Progress(); !strings.Contains(p.String(), "pulling "+host+"/app:v1: ") || !strings.Contains(p.String(), tc.says) || p.Stall != 4*time.Second {
				t.Errorf("the progress is %q (%+v), want the text %q in it", p, p, tc.says)
			}
			requireNothingLeft(t, s, 0)
		})
	}
}

// stopping sends nothing more after some bytes.
type stopping struct {
	http.ResponseWriter
	room    int
	release chan struct{}
}

func (w *stopping) Write(p []byte) (int, error) {
	if len(p) <= w.room {
		w.room -= len(p)
		return w.ResponseWriter.Write(p)
	}
	n, err := w.ResponseWriter.Write(p[:w.room])
	w.room = 0
	if err == nil {
		err = http.NewResponseController(w.ResponseWriter).Flush()
	}
	<-w.release
	return n, errors.Join(err, errors.New("it stopped"))
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

// TestLocalPullsReportProgress checks that pulls of files of this machine report progress and
// have no stall timeout.
func TestLocalPullsReportProgress(t *testing.T) {
	t.Parallel()
	spec := ociimage.Spec{Files: map[string]ociimage.File{"f": {Content: randomBytes(1 << 20)}}}
	_, ref, _ := layout(t, spec)
	archive := filepath.Join(t.TempDir(), "a.tar")
	if _, err := ociimage.WriteArchive(archive, "v1", spec); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{ref, "oci-archive:" + archive + ":v1"} {
		w := &progress.Work{}
		if _, err := open(t, nil).Pull(progress.With(t.Context(), w), PullRequest{Reference: ref}); err != nil {
			t.Fatal(err)
		}
		p := w.Progress()
		if !strings.HasPrefix(p.String(), "pulling "+ref+": ") || !strings.HasSuffix(p.String(), "1.0 MiB of 1.0 MiB") || p.Stall != 0 {
			t.Errorf("the progress of %s is %q (%+v)", ref, p, p)
		}
	}
}

func TestPullReportsAKilledUnpacker(t *testing.T) {
	t.Parallel()
	_, ref, _ := layout(t, small())
	for name, argv := range map[string][]string{
		"silent":  {"/bin/true"},
		"noisy":   {"/bin/sh", "-c", "echo out of memory >&2; exit 3"},
		"missing": {"/nowhere/riklet"},
	} {
		s := open(t, func(c *Config) { c.Unpacker = argv })
		_, err := s.Pull(t.Context(), PullRequest{Reference: ref})
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		if name == "noisy" && (!strings.Contains(err.Error(), "out of memory") || !strings.Contains(err.Error(), "exit status 3")) {
			t.Errorf("%s: %v, want its output and its exit code", name, err)
		}
		requireNothingLeft(t, s, 0)
	}
}

func TestConfigReportsEveryProblem(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		cfg  Config
		says []string
	}{
		{Config{}, []string{"root", "unpacker"}},
		{Config{Root: "relative", Unpacker: []string{"x"}}, []string{"absolute"}},
		{Config{Root: "/with:colon", Unpacker: []string{"x"}}, []string{"mount options"}},
		{Config{Root: "/with,comma", Unpacker: []string{"x"}}, []string{"mount options"}},
	} {
		_, err := Open(tc.cfg)
		if !errors.Is(err, ErrInvalidConfig) {
			t.Errorf("Open(%+v) = %v, want %v", tc.cfg, err, ErrInvalidConfig)
			continue
		}
		for _, want := range tc.says {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("Open(%+v) = %v, which does not contain %q", tc.cfg, err, want)
			}
		}
	}
}

// waitFor polls until done returns true.
func waitFor(tb testing.TB, what string, done func() bool) {
	tb.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-deadline.C:
			tb.Fatalf("gave up waiting for %s", what)
		case <-tick.C:
		}
	}
}
