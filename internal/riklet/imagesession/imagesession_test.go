package imagesession

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/progress"
	"rik.dev/rik/internal/rpc/nodeimage"
	"rik.dev/rik/internal/rpc/nodev1"
)

// store has the images "app:1" and "db:1".
type store struct {
	pulled  image.PullRequest
	removed string
	results []image.ImportResult
	err     error
}

func (s *store) Images() []image.Info {
	return []image.Info{{Reference: "docker://app:1", Digest: "sha256:a", Bytes: 7}, {Reference: "docker://db:1", Imported: true}}
}

func (s *store) Canonical(name string) (string, error) {
	if name == "" {
		return "", image.ErrInvalidReference
	}
	return "docker://" + strings.TrimPrefix(name, "docker://"), nil
}

func (s *store) Pull(ctx context.Context, req image.PullRequest) (*image.Image, error) {
	s.pulled = req
	work := progress.Of(ctx)
	work.Begin(progress.Progress{What: "pulling app:1", Total: 100})
	time.Sleep(interval + time.Millisecond)
	work.Set(40, 100)
	time.Sleep(interval)
	return &image.Image{Reference: "docker://app:1"}, s.err
}

func (s *store) Import(_ context.Context, req image.ImportRequest) ([]image.ImportResult, error) {
	if _, err := io.Copy(io.Discard, req.Stream); err != nil {
		return nil, err
	}
	return s.results, s.err
}

func (s *store) Export(_ context.Context, name string, to io.Writer) error {
	_, err := fmt.Fprintf(to, "archive of %s", name)
	return errors.Join(err, s.err)
}

func (s *store) Remove(_ context.Context, name string) (int64, error) {
	s.removed = name
	return 42, s.err
}

func users() []User {
	all := []User{{"shop/web-1", []string{"app:1", "side:1"}}, {"shop/web-0", []string{"app:1", "app:1"}}}
	return all
}

func serve(t *testing.T, s *Service, request *nodev1.ImagesSession, body string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := s.Serve(t.Context(), request, io.NopCloser(strings.NewReader(body)), &out)
	return out.String(), err
}

func events(t *testing.T, text string) (all []nodeimage.Event) {
	t.Helper()
	for line := range strings.Lines(text) {
		var e nodeimage.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, e)
	}
	return all
}

func TestList(t *testing.T) {
	t.Parallel()
	text, err := serve(t, New(&store{}, users), &nodev1.ImagesSession{Request: &nodev1.ImagesSession_List{}}, "")
	if err != nil {
		t.Fatal(err)
	}
	var got nodeimage.List
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	want := []nodeimage.Image{{Reference: "app:1", Digest: "sha256:a", Bytes: 7, UsedBy: []string{"shop/web-0", "shop/web-1"}}, {Reference: "db:1", Imported: true}}
	if diff := cmp.Diff(want, got.Items); diff != "" {
		t.Errorf("list (-want +got)\n%s", diff)
	}
}

func TestPullSaysHowFarItIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		st := &store{}
		text, err := serve(t, New(st, users), &nodev1.ImagesSession{Request: &nodev1.ImagesSession_Pull{Pull: &nodev1.PullImage{Reference: "app:1", Auth: []byte("secret")}}}, "")
		if err != nil {
			t.Fatal(err)
		}
		if st.pulled.Reference != "app:1" || st.pulled.Policy != v1alpha1.PullAlways || string(st.pulled.Auth) != "secret" {
			t.Errorf("pulled %+v", st.pulled)
		}
		want := []nodeimage.Event{
			{Progress: &nodeimage.Progress{Text: "pulling app:1", Total: 100}},
			{Progress: &nodeimage.Progress{Text: "pulling app:1", Bytes: 40, Total: 100}},
			{Image: &nodeimage.Image{Reference: "app:1", Digest: "sha256:a", Bytes: 7, UsedBy: []string{"shop/web-0", "shop/web-1"}}},
			{Done: &nodeimage.Done{}},
		}
		if diff := cmp.Diff(want, events(t, text)); diff != "" {
			t.Errorf("events (-want +got)\n%s", diff)
		}
		st.err = image.ErrUnauthorized
		text, err = serve(t, New(st, users), &nodev1.ImagesSession{Request: &nodev1.ImagesSession_Pull{Pull: &nodev1.PullImage{Reference: "app:1"}}}, "")
		all := events(t, text)
		if err != nil || all[len(all)-1].Done.Error != image.ErrUnauthorized.Error() {
			t.Errorf("a pull that fails: %s, %v", text, err)
		}
	})
}

func TestImportReportsEachImage(t *testing.T) {
	t.Parallel()
	st := &store{results: []image.ImportResult{{Image: image.Info{Reference: "docker://app:1"}}, {Image: image.Info{Reference: "docker://db:1"}, Err: image.ErrPlatform}}}
	text, err := serve(t, New(st, users), &nodev1.ImagesSession{Request: &nodev1.ImagesSession_Import{Import: &nodev1.ImportImages{}}}, "archive")
	if err != nil {
		t.Fatal(err)
	}
	want := []nodeimage.Event{
		{Image: &nodeimage.Image{Reference: "app:1"}},
		{Failed: &nodeimage.Failure{Reference: "db:1", Error: image.ErrPlatform.Error()}},
		{Done: &nodeimage.Done{Error: "1 of 2 images were not imported"}},
	}
	if diff := cmp.Diff(want, events(t, text)); diff != "" {
		t.Errorf("events (-want +got)\n%s", diff)
	}
}

func TestExportWritesTheArchive(t *testing.T) {
	t.Parallel()
	request := &nodev1.ImagesSession{Request: &nodev1.ImagesSession_Export{Export: &nodev1.ExportImage{Reference: "app:1"}}}
	if text, err := serve(t, New(&store{}, users), request, ""); err != nil || text != "archive of app:1" {
		t.Errorf("export = %q, %v", text, err)
	}
	var classified *Error
	if _, err := serve(t, New(&store{err: image.ErrNotPresent}, users), request, ""); !errors.As(err, &classified) || classified.Problem() != nodev1.Problem_PROBLEM_NOT_PRESENT {
		t.Errorf("export of an image that is not there = %v", err)
	}
}

func TestRemoveNamesWhoUsesTheImage(t *testing.T) {
	t.Parallel()
	remove := func(ref string) *nodev1.ImagesSession {
		return &nodev1.ImagesSession{Request: &nodev1.ImagesSession_Remove{Remove: &nodev1.RemoveImage{Reference: ref}}}
	}
	st := &store{}
	_, err := serve(t, New(st, users), remove("app:1"), "")
	var classified *Error
	if !errors.As(err, &classified) || classified.Problem() != nodev1.Problem_PROBLEM_IN_USE || !strings.HasSuffix(err.Error(), "app:1 is used by instances shop/web-0, shop/web-1") || st.removed != "" {
		t.Errorf("remove of an image in use = %v, removed %q", err, st.removed)
	}
	if text, err := serve(t, New(st, users), remove("db:1"), ""); err != nil || strings.TrimSpace(text) != `{"reference":"db:1","freedBytes":42}` || st.removed != "docker://db:1" {
		t.Errorf("remove = %s, %v, removed %q", text, err, st.removed)
	}
	if _, err := serve(t, New(st, users), remove(""), ""); !errors.As(err, &classified) || classified.Problem() != nodev1.Problem_PROBLEM_INVALID {
		t.Errorf("remove of nothing = %v", err)
	}
	if got := several([]string{"a", "b", "c", "d", "e", "f", "g"}); got != "instances a, b, c, d, e and 2 more" {
		t.Errorf("several() = %q", got)
	}
}
