package image

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"rik.dev/rik/internal/ociimage"
)

// retag makes data the manifest or index of the tag v1 in the layout, and returns its digest.
func retag(tb testing.TB, dir, mediaType string, data []byte) string {
	tb.Helper()
	d := digest.FromBytes(data)
	index, err := json.Marshal(v1.Index{Manifests: []v1.Descriptor{{
		MediaType: mediaType, Digest: d, Size: int64(len(data)), Annotations: map[string]string{v1.AnnotationRefName: "v1"},
	}}})
	if err != nil {
		tb.Fatal(err)
	}
	for path, content := range map[string][]byte{v1.ImageIndexFile: index, "blobs/sha256/" + d.Encoded(): data} {
		if err := os.WriteFile(filepath.Join(dir, path), content, 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	return d.String()
}

// remanifest changes the manifest of an otherwise valid layout.
func remanifest(tb testing.TB, dir, from string, change func(*v1.Manifest)) {
	tb.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "blobs", strings.ReplaceAll(from, ":", "/")))
	if err != nil {
		tb.Fatal(err)
	}
	var m v1.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		tb.Fatal(err)
	}
	change(&m)
	if data, err = json.Marshal(m); err != nil {
		tb.Fatal(err)
	}
	retag(tb, dir, v1.MediaTypeImageManifest, data)
}

// All other content is checked against the manifest. A manifest that differs from the one in the
// index could name any content.
func TestPullRefusesAlteredManifests(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	for name, write := range map[string]func(dir string) (string, error){
		"manifest": func(dir string) (string, error) { return ociimage.Write(dir, "v1", small()) },
		"index":    func(dir string) (string, error) { return ociimage.WriteIndex(dir, "v1", small()) },
		"inner":    func(dir string) (string, error) { return ociimage.WriteIndex(dir, "v1", small()) },
	} {
		dir := filepath.Join(tmp, name)
		want, err := write(dir)
		if err != nil {
			t.Fatal(err)
		}
		blob := func(d string) string { return filepath.Join(dir, "blobs", strings.ReplaceAll(d, ":", "/")) }
		data, err := os.ReadFile(blob(want))
		if err != nil {
			t.Fatal(err)
		}
		if name == "inner" {
			var index v1.Index
			if err := json.Unmarshal(data, &index); err != nil {
				t.Fatal(err)
			}
			want = index.Manifests[0].Digest.String()
			if data, err = os.ReadFile(blob(want)); err != nil {
				t.Fatal(err)
			}
		}
		// The altered manifest has the same size and is valid JSON.
		altered := bytes.Replace(data, []byte(`"schemaVersion":2`), []byte(`"schemaversion":2`), 1)
		if err := os.WriteFile(blob(want), altered, 0o644); err != nil {
			t.Fatal(err)
		}
		s := open(t, nil)
		_, err = s.Pull(t.Context(), PullRequest{Reference: "oci:" + dir + ":v1"})
		if found := digest.FromBytes(altered).String(); !errors.Is(err, ErrDigest) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), found) {
			t.Errorf("altered %s: %v, want %v that names %s and %s", name, err, ErrDigest, want, found)
		}
		requireNothingLeft(t, s, 0)
	}
}

func TestPullRefusesWrongSizes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*v1.Manifest)
		want   error
		says   func(v1.Manifest) string
	}{
		"negative layer": {func(m *v1.Manifest) { m.Layers[1].Size = -5 }, ErrRefused, func(m v1.Manifest) string {
			return "layer 2: image refused: the descriptor of " + m.Layers[1].Digest.String()
		}},
		"layer of -1":   {func(m *v1.Manifest) { m.Layers[0].Size = -1 }, ErrRefused, func(m v1.Manifest) string { return m.Layers[0].Digest.String() }},
		"longer layer":  {func(m *v1.Manifest) { m.Layers[1].Size++ }, ErrDigest, func(m v1.Manifest) string { return m.Layers[1].Digest.String() }},
		"shorter layer": {func(m *v1.Manifest) { m.Layers[1].Size-- }, ErrDigest, func(m v1.Manifest) string { return m.Layers[1].Digest.String() }},
		"negative config": {func(m *v1.Manifest) { m.Config.Size = -1 }, ErrRefused, func(m v1.Manifest) string {
			return "configuration: image refused: the descriptor of " + m.Config.Digest.String()
		}},
		"short config": {func(m *v1.Manifest) { m.Config.Size = 3 }, ErrRefused, func(m v1.Manifest) string { return m.Config.Digest.String() + " announces 3 bytes" }},
		"empty digest": {func(m *v1.Manifest) { m.Layers[0].Digest = "" }, ErrRefused, func(v1.Manifest) string { return "layer 1" }},
		"config is a path": {func(m *v1.Manifest) { m.Config.Digest = "sha256:../../../../etc/passwd" }, ErrRefused,
			func(v1.Manifest) string { return "configuration" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, ref, d := layout(t, small())
			var changed v1.Manifest
			remanifest(t, dir, d, func(m *v1.Manifest) { tc.change(m); changed = *m })
			s := open(t, nil)
			_, err := s.Pull(t.Context(), PullRequest{Reference: ref})
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says(changed)) {
				t.Errorf("Pull = %v, want %v with the text %q", err, tc.want, tc.says(changed))
			}
			requireNothingLeft(t, s, 0)
		})
	}
}

func TestPullRefusesWrongSizesOfManifests(t *testing.T) {
	t.Parallel()
	for _, size := range []int64{-1, 0, 3, 1 << 40} {
		dir, ref, d := layout(t, small())
		path := filepath.Join(dir, v1.ImageIndexFile)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		data = regexp.MustCompile(`"size":\d+`).ReplaceAll(data, fmt.Appendf(nil, `"size":%d`, size))
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		s := open(t, nil)
		if _, err := s.Pull(t.Context(), PullRequest{Reference: ref}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), d) {
			t.Errorf("size %d: %v, want %v that names %s", size, err, ErrRefused, d)
		}
		requireNothingLeft(t, s, 0)
	}
}

// Documents that are parsed as a whole need many times their size in memory.
func TestPullLimitsManifests(t *testing.T) {
	t.Parallel()
	// Valid, except for the added blanks.
	pad := func(data []byte) []byte { return append(data, bytes.Repeat([]byte(" "), 5<<20)...) }
	padFile := func(path string) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, pad(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, make := range map[string]func(dir string) string{
		"manifest": func(dir string) string {
			d, err := ociimage.Write(dir, "v1", small())
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(filepath.Join(dir, "blobs", strings.ReplaceAll(d, ":", "/")))
			if err != nil {
				t.Fatal(err)
			}
			retag(t, dir, v1.MediaTypeImageManifest, pad(data))
			return "oci:" + dir
		},
		"index": func(dir string) string {
			if _, err := ociimage.Write(dir, "v1", small()); err != nil {
				t.Fatal(err)
			}
			retag(t, dir, v1.MediaTypeImageIndex, pad([]byte(`{"schemaVersion":2,"manifests":[]}`)))
			return "oci:" + dir
		},
		"index.json": func(dir string) string {
			if _, err := ociimage.Write(dir, "v1", small()); err != nil {
				t.Fatal(err)
			}
			padFile(filepath.Join(dir, v1.ImageIndexFile))
			return "oci:" + dir
		},
		"manifest.json": func(dir string) string {
			if _, err := ociimage.WriteDir(dir, small()); err != nil {
				t.Fatal(err)
			}
			padFile(filepath.Join(dir, "manifest.json"))
			return "dir:" + dir
		},
		"version": func(dir string) string {
			if _, err := ociimage.WriteDir(dir, small()); err != nil {
				t.Fatal(err)
			}
			padFile(filepath.Join(dir, "version"))
			return "dir:" + dir
		},
		"configuration": func(dir string) string {
			spec := small()
			spec.Labels = map[string]string{"l": strings.Repeat("x", 5<<20)}
			if _, err := ociimage.Write(dir, "v1", spec); err != nil {
				t.Fatal(err)
			}
			return "oci:" + dir
		},
	} {
		s := open(t, nil)
		if _, err := s.Pull(t.Context(), PullRequest{Reference: make(filepath.Join(t.TempDir(), "image"))}); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: %v, want %v", name, err, ErrTooLarge)
		}
		requireNothingLeft(t, s, 0)
	}
}

// Without the check, a FIFO without a writer would block until the time limit.
func TestPullRefusesSpecialFiles(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	instead := func(path string, put func(string) error) {
		if err := errors.Join(os.RemoveAll(path), put(path)); err != nil {
			t.Fatal(err)
		}
	}
	fifo := func(path string) error { return syscall.Mkfifo(path, 0o600) }
	dir := func(path string) error { return os.Mkdir(path, 0o700) }
	for _, kind := range []struct {
		name string
		put  func(string) error
	}{{"FIFO", fifo}, {"directory", dir}} {
		refs := []string{"docker-archive:" + filepath.Join(tmp, kind.name), "oci-archive:" + filepath.Join(tmp, kind.name) + ":v1"}
		instead(filepath.Join(tmp, kind.name), kind.put)
		for _, file := range []string{"manifest.json", "version"} {
			at := filepath.Join(tmp, kind.name+file)
			if _, err := ociimage.WriteDir(at, small()); err != nil {
				t.Fatal(err)
			}
			instead(filepath.Join(at, file), kind.put)
			refs = append(refs, "dir:"+at)
		}
		for name, pick := range map[string]func(dir, digest string) string{
			"index":    func(dir, _ string) string { return filepath.Join(dir, v1.ImageIndexFile) },
			"manifest": func(dir, d string) string { return filepath.Join(dir, "blobs", strings.ReplaceAll(d, ":", "/")) },
			"config": func(dir, d string) string {
				return blobOf(t, dir, d, func(m v1.Manifest) v1.Descriptor { return m.Config })
			},
			"layer": func(dir, d string) string { return blobOf(t, dir, d, lastLayer) },
		} {
			at := filepath.Join(tmp, kind.name+name)
			d, err := ociimage.Write(at, "v1", small())
			if err != nil {
				t.Fatal(err)
			}
			instead(pick(at, d), kind.put)
			refs = append(refs, "oci:"+at)
		}
		s := open(t, nil)
		for _, ref := range refs {
			if _, err := s.Pull(t.Context(), PullRequest{Reference: ref}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "is not a regular file, it is a "+kind.name) {
				t.Errorf("%s: %v, want %v: not a regular file, it is a %s", ref, err, ErrRefused, kind.name)
			}
		}
		requireNothingLeft(t, s, 0)
	}
}

func TestPullNamesMissingPartsOfALayout(t *testing.T) {
	t.Parallel()
	tmp := t.TempDir()
	dir, _, _ := layout(t, small())
	if _, err := ociimage.Write(dir, "v2", small()); err != nil {
		t.Fatal(err)
	}
	for name, index := range map[string]string{"empty": `{"manifests":[]}`, "junk": `{"manifests"`, "helm": `{"manifests":[{"mediaType":"application/x","digest":"` + someDigest + `","size":0}]}`} {
		if err := errors.Join(os.MkdirAll(filepath.Join(tmp, name, "blobs/sha256"), 0o755), os.WriteFile(filepath.Join(tmp, name, v1.ImageIndexFile), []byte(index), 0o644),
			os.WriteFile(filepath.Join(tmp, name, "blobs/sha256", strings.TrimPrefix(someDigest, "sha256:")), nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for ref, want := range map[string]error{
		"oci:" + dir:                               ErrInvalidReference, // two images
		"oci:" + dir + ":v3":                       ErrNotPresent,
		"oci:" + tmp + "/none":                     ErrNotPresent,
		"oci:" + dir + "/index.json":               ErrNotPresent,
		"oci:" + tmp + "/empty":                    ErrNotPresent,
		"oci:" + tmp + "/junk":                     ErrRefused,
		"oci:" + tmp + "/helm":                     ErrUnsupported,
		"dir:" + tmp + "/none":                     ErrNotPresent,
		"oci-archive:" + tmp + "/none":             ErrNotPresent,
		"docker-archive:" + tmp + "/none":          ErrNotPresent,
		"docker-archive:" + dir + "/index.json":    ErrRefused,
		"oci-archive:" + dir + "/index.json":       ErrRefused,
		"docker-archive:" + dir + "/index.json:@3": ErrRefused,
	} {
		if _, err := open(t, nil).Pull(t.Context(), PullRequest{Reference: ref}); !errors.Is(err, want) {
			t.Errorf("Pull(%s) = %v, want %v", ref, err, want)
		}
	}
}

// The registry's answer is checked against the digest in the reference.
func TestPullRefusesAManifestThatIsNotTheOneNamed(t *testing.T) {
	t.Parallel()
	dir, _, digest := layout(t, small())
	other := small()
	other.Env = []string{"EVIL=1"}
	_, _, otherDigest := layout(t, other)
	blob := func(d string) string { return filepath.Join(dir, "blobs", strings.ReplaceAll(d, ":", "/")) }
	data, err := os.ReadFile(blob(digest))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(blob(otherDigest), data, 0o644); err != nil {
		t.Fatal(err)
	}
	host := registry(t, &ociimage.Registry{Dir: dir})
	s := open(t, nil)
	if _, err := s.Pull(t.Context(), PullRequest{Reference: host + "/app@" + otherDigest}); !errors.Is(err, ErrDigest) || !strings.Contains(err.Error(), otherDigest) {
		t.Errorf("Pull by the digest of another image: %v, want %v", err, ErrDigest)
	}
	requireNothingLeft(t, s, 0)
}
