package objects

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/rpc/nodev1"
)

func newStore(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := New(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// requests returns the pending requests as text.
func requests(s *Store) []string {
	asked := []string{}
	for _, g := range s.PendingRequests() {
		asked = append(asked, Key{g.GetKind(), g.GetNamespace(), g.GetName()}.String())
	}
	return asked
}

func wantRequests(t *testing.T, s *Store, want ...string) {
	t.Helper()
	if want == nil {
		want = []string{}
	}
	if diff := cmp.Diff(want, requests(s)); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func secretObject(name, value string) *nodev1.Object {
	return &nodev1.Object{Kind: nodev1.Kind_KIND_SECRET, Namespace: "shop", Name: name, Found: true, Type: "Opaque", Entries: map[string][]byte{"k": []byte(value)}}
}

func template(image string) *rikv1alpha1.InstanceTemplate {
	return &rikv1alpha1.InstanceTemplate{Kind: rikv1alpha1.KindPod, Containers: []rikv1alpha1.Container{{Name: "c", Image: image}}}
}

func revisionObject(t *testing.T, name string) *nodev1.Object {
	t.Helper()
	data, err := template(name).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return &nodev1.Object{Kind: nodev1.Kind_KIND_REVISION, Namespace: "shop", Name: name, Found: true, Data: data}
}

// ask reads a Secret in another goroutine and returns once that waits.
func ask(ctx context.Context, s *Store, name string) <-chan result {
	out := make(chan result, 1)
	go func() {
		e, err := s.Secret(ctx, "shop", name)
		out <- result{e, err}
	}()
	synctest.Wait()
	return out
}

type result struct {
	entries instance.Entries
	err     error
}

func TestReadersWaitForTheController(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, t.TempDir())
		first, second := ask(t.Context(), s, "password"), ask(t.Context(), s, "password")
		wantRequests(t, s, "secret shop/password")
		s.Deliver(secretObject("password", "one"))
		for _, r := range []<-chan result{first, second} {
			if got := <-r; got.err != nil || !got.entries.Found || string(got.entries.Data["k"]) != "one" {
				t.Errorf("Secret() = %+v, want the value one", got)
			}
		}
		// Later readers get a pushed update without another request.
		s.Deliver(secretObject("password", "two"))
		if got, err := s.Secret(t.Context(), "shop", "password"); err != nil || string(got.Data["k"]) != "two" {
			t.Errorf("Secret() after an update = %+v, %v, want the value two", got, err)
		}
		wantRequests(t, s)
	})
}

func TestReadEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, t.TempDir())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if got := <-ask(ctx, s, "password"); !errors.Is(got.err, context.DeadlineExceeded) {
			t.Errorf("Secret() = %v, want the deadline", got.err)
		}
	})
}

func TestRefusalIsAnErrorAndIsRetried(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, t.TempDir())
		r := ask(t.Context(), s, "password")
		wantRequests(t, s, "secret shop/password")
		s.Deliver(&nodev1.Object{Kind: nodev1.Kind_KIND_SECRET, Namespace: "shop", Name: "password", Error: "not of an instance of yours"})
		if got := <-r; got.err == nil || !strings.Contains(got.err.Error(), "not of an instance of yours") {
			t.Errorf("Secret() = %v, want the controller's words", got.err)
		}
		ask(t.Context(), s, "password")
		wantRequests(t, s, "secret shop/password")
		s.Deliver(secretObject("password", "one"))
		synctest.Wait()
	})
}

func TestReconnectRequestsEverythingThatChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, t.TempDir())
		r := ask(t.Context(), s, "held")
		s.Deliver(secretObject("held", "v"))
		<-r
		ask(t.Context(), s, "awaited")
		if _, err := s.Revision("shop", "new-1"); err != nil {
			t.Fatal(err)
		}
		s.PendingRequests()
		s.Reconnected()
		wantRequests(t, s, "secret shop/held", "secret shop/awaited", "workloadrevision shop/new-1")
		s.Deliver(secretObject("awaited", "v"))
		synctest.Wait()
	})
}

func TestSecretsAreRemovedWithTheirLastUser(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, t.TempDir())
		refers := template("i")
		refers.ImagePullSecrets = []string{"pull"}
		s.Use("a", "shop", refers)
		s.Use("b", "shop", refers)
		r := ask(t.Context(), s, "pull")
		s.Deliver(secretObject("pull", "old"))
		<-r
		s.PendingRequests()
		s.Release("a")
		if got, err := s.Secret(t.Context(), "shop", "pull"); err != nil || string(got.Data["k"]) != "old" {
			t.Errorf("Secret() with a user left = %+v, %v", got, err)
		}
		s.Release("b")
		// The controller sent no changes meanwhile: for a new user, the object is read again.
		s.Use("c", "shop", refers)
		r = ask(t.Context(), s, "pull")
		wantRequests(t, s, "secret shop/pull")
		s.Deliver(secretObject("pull", "new"))
		if got := <-r; string(got.entries.Data["k"]) != "new" {
			t.Errorf("Secret() of a new user = %+v, want the new value", got)
		}
	})
}

func TestUpdatedOnOtherContentOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		updates := 0
		s, err := New(Config{Dir: t.TempDir(), Updated: func() { updates++ }})
		if err != nil {
			t.Fatal(err)
		}
		s.Deliver(secretObject("held", "without a request"))
		r := ask(t.Context(), s, "held")
		s.Deliver(secretObject("held", "one"))
		<-r
		s.Deliver(secretObject("held", "one")) // as after a new stream
		if updates != 0 {
			t.Errorf("Updated was called %d times before anything changed", updates)
		}
		s.Deliver(secretObject("held", "two"))
		if updates != 1 {
			t.Errorf("Updated was called %d times after one change", updates)
		}
	})
}

func TestRevisionIsRequestedOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	changed := 0
	s, err := New(Config{Dir: dir, Changed: func() { changed++ }})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got, err := s.Revision("shop", "web-1"); got != nil || err != nil {
			t.Fatalf("Revision() = %v, %v before an answer", got, err)
		}
	}
	wantRequests(t, s, "workloadrevision shop/web-1")
	s.Deliver(revisionObject(t, "web-1"))
	got, err := s.Revision("shop", "web-1")
	if diff := cmp.Diff(template("web-1"), got); err != nil || diff != "" || changed != 1 {
		t.Errorf("Revision() = %v, changed %d times (-want +got):\n%s", err, changed, diff)
	}
	// A node that restarts without a controller.
	again := newStore(t, dir)
	got, err = again.Revision("shop", "web-1")
	if diff := cmp.Diff(template("web-1"), got); err != nil || diff != "" {
		t.Errorf("Revision() after a restart = %v (-want +got):\n%s", err, diff)
	}
	wantRequests(t, again)
}

func TestMissingRevisionIsRequestedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore(t, t.TempDir())
		_, _ = s.Revision("shop", "web-1")
		s.PendingRequests()
		s.Deliver(&nodev1.Object{Kind: nodev1.Kind_KIND_REVISION, Namespace: "shop", Name: "web-1"})
		if _, err := s.Revision("shop", "web-1"); err == nil || !strings.Contains(err.Error(), "does not have this revision") {
			t.Errorf("Revision() = %v, want an error about a missing revision", err)
		}
		wantRequests(t, s)
		time.Sleep(time.Until(s.Retry()))
		_, _ = s.Revision("shop", "web-1")
		wantRequests(t, s, "workloadrevision shop/web-1")
		s.Deliver(revisionObject(t, "web-1"))
		if got, err := s.Revision("shop", "web-1"); got == nil || err != nil || !s.Retry().IsZero() {
			t.Errorf("Revision() = %v, %v, retry %s, want the template", got, err, s.Retry())
		}
	})
}

func TestDamagedTemplateIsFetchedAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := newStore(t, dir)
	_, _ = s.Revision("shop", "web-1")
	s.Deliver(revisionObject(t, "web-1"))
	path := s.file(Key{nodev1.Kind_KIND_REVISION, "shop", "web-1"})
	for name, text := range map[string]string{"rubbish": "\xff\xff\xff", "another's": string(marshaled(t, "web-2"))} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		again := newStore(t, dir)
		if got, err := again.Revision("shop", "web-1"); got != nil || err != nil {
			t.Errorf("%s: Revision() = %v, %v, want nothing yet", name, got, err)
		}
		wantRequests(t, again, "workloadrevision shop/web-1")
	}
}

func TestRetain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := newStore(t, dir)
	for _, name := range []string{"web-1", "web-2"} {
		_, _ = s.Revision("shop", name)
		s.Deliver(revisionObject(t, name))
	}
	s.PendingRequests()
	keep := func(_, name string) bool { return name == "web-2" }
	for range 2 {
		if err := s.Retain(keep); err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(dir)
		if err != nil || len(files) != 1 {
			t.Errorf("%d files are kept, %v, want one", len(files), err)
		}
	}
	if got, _ := s.Revision("shop", "web-2"); got == nil {
		t.Error("a template in use was forgotten")
	}
	if got, _ := s.Revision("shop", "web-1"); got != nil {
		t.Error("an unused template still exists")
	}
}

// Names from the cluster never become paths on the node.
func TestHostileNamesStayInTheDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := newStore(t, dir)
	name := "../../../../tmp/rik-escaped"
	_, _ = s.Revision("shop", name)
	s.Deliver(revisionObject(t, name))
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 || strings.Contains(files[0].Name(), "escaped") {
		t.Errorf("kept %v, %v, want one file in the store's directory", files, err)
	}
}

func TestReferences(t *testing.T) {
	t.Parallel()
	env := func(configMap, secret string) []rikv1alpha1.EnvVar {
		return []rikv1alpha1.EnvVar{
			{Name: "plain", Value: "v"}, {Name: "field", ValueFrom: &rikv1alpha1.EnvVarSource{FieldRef: "metadata.name"}},
			{Name: "a", ValueFrom: &rikv1alpha1.EnvVarSource{ConfigMapKeyRef: &rikv1alpha1.KeyRef{Name: configMap}}},
			{Name: "b", ValueFrom: &rikv1alpha1.EnvVarSource{SecretKeyRef: &rikv1alpha1.KeyRef{Name: secret}}},
		}
	}
	in := &rikv1alpha1.InstanceTemplate{
		Volumes: []rikv1alpha1.Volume{
			{Name: "a", ConfigMap: &rikv1alpha1.ObjectVolume{Name: "cm-volume"}}, {Name: "b", Secret: &rikv1alpha1.ObjectVolume{Name: "s-volume"}},
			{Name: "c", EmptyDir: &rikv1alpha1.EmptyDirVolume{}},
		},
		ImagePullSecrets: []string{"s-pull"},
		InitContainers:   []rikv1alpha1.Container{{Name: "i", Env: env("cm-init", "s-init")}},
		Containers: []rikv1alpha1.Container{{
			Name: "c", Env: env("cm-env", "s-volume"),
			EnvFrom: []rikv1alpha1.EnvFromSource{{ConfigMap: "cm-from"}, {Secret: "s-from"}},
		}},
		App:      &rikv1alpha1.App{Env: env("cm-app", "s-app")},
		Function: &rikv1alpha1.Function{Env: env("cm-function", "s-function")},
	}
	got := map[string]bool{}
	keys := References("shop", in)
	for _, key := range keys {
		got[key.String()] = true
	}
	want := map[string]bool{}
	for _, name := range []string{"cm-volume", "cm-init", "cm-env", "cm-from", "cm-app", "cm-function"} {
		want["configmap shop/"+name] = true
	}
	for _, name := range []string{"s-volume", "s-pull", "s-init", "s-from", "s-app", "s-function"} {
		want["secret shop/"+name] = true
	}
	if diff := cmp.Diff(want, got); diff != "" || len(keys) != len(want) {
		t.Errorf("References() has %d keys, want %d (-want +got):\n%s", len(keys), len(want), diff)
	}
}

func marshaled(t *testing.T, name string) []byte {
	t.Helper()
	dir := t.TempDir()
	s := newStore(t, dir)
	_, _ = s.Revision("shop", name)
	s.Deliver(revisionObject(t, name))
	text, err := os.ReadFile(s.file(Key{nodev1.Kind_KIND_REVISION, "shop", name}))
	if err != nil {
		t.Fatal(err)
	}
	return text
}
