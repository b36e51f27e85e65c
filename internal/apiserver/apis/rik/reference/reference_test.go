package reference_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rik.dev/rik/internal/apiserver/apis/rik/reference"
)

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestParse(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]reference.Reference{
		"nginx":                      {Transport: "docker", Registry: "docker.io", Repository: "library/nginx"},
		"nginx:1.27":                 {Transport: "docker", Registry: "docker.io", Repository: "library/nginx", Tag: "1.27"},
		"docker://bitnami/redis":     {Transport: "docker", Registry: "docker.io", Repository: "bitnami/redis"},
		"localhost/x":                {Transport: "docker", Registry: "localhost", Repository: "x"},
		"localhost:5001/a/b":         {Transport: "docker", Registry: "localhost:5001", Repository: "a/b"},
		"localhost:5001/a/b:v1":      {Transport: "docker", Registry: "localhost:5001", Repository: "a/b", Tag: "v1"},
		"[::1]:5001/a:v1@" + digest:  {Transport: "docker", Registry: "[::1]:5001", Repository: "a", Tag: "v1", Digest: digest},
		"quay.io/a/b_c@" + digest:    {Transport: "docker", Registry: "quay.io", Repository: "a/b_c", Digest: digest},
		"oci:/srv/image":             {Transport: "oci", Path: "/srv/image"},
		"oci:/srv/image:v1":          {Transport: "oci", Path: "/srv/image", Tag: "v1"},
		"oci-archive:/srv/i.tar:a/b": {Transport: "oci-archive", Path: "/srv/i.tar", Tag: "a/b"},
		"docker-archive:/srv/i.tar":  {Transport: "docker-archive", Path: "/srv/i.tar"},
		"dir:/srv/i":                 {Transport: "dir", Path: "/srv/i"},
		"dir:1":                      {Transport: "docker", Registry: "docker.io", Repository: "library/dir", Tag: "1"},
	} {
		t.Run(in, func(t *testing.T) {
			t.Parallel()
			got, err := reference.Parse(in)
			if err != nil {
				t.Fatalf("Parse(%q): %v", in, err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Parse(%q) (-want +got):\n%s", in, diff)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                              "an image is required",
		"a b":                           "space",
		"a\x00b":                        "control",
		"ünïcode":                       "non-ASCII",
		strings.Repeat("a", 2000):       "longer",
		strings.Repeat("a", 300):        "longer than 255",
		"Nginx":                         "lower-case",
		"nginx:":                        "not a tag",
		"nginx:-x":                      "not a tag",
		"nginx@sha256:12":               "not a digest",
		"nginx@":                        "not a digest",
		"host:port/x":                   "registry's host",
		"http://example.com/x":          "transport",
		"docker://":                     "lower-case",
		"localhost:5000/":               "a repository is required",
		"a//b":                          "not part of",
		"../etc/passwd":                 "registry's host",
		"oci:":                          "a path is required",
		"oci:./x":                       "absolute",
		"oci:/a/../etc":                 "without",
		"dir:/":                         "root directory",
		"dir:/a/":                       "without",
		"oci:/srv/image:$(reboot)":      "not a name",
		"containers-storage:/x/y":       "registry's host",
		"docker-daemon:library/x:1":     "registry's host",
		"x@" + digest + "@" + digest:    "not a digest",
		"oci:/srv/i@" + digest:          "oci: takes no digest",
		"oci:/srv/i:v1@" + digest:       "oci: takes no digest",
		"oci:/srv/i@sha256:12":          "oci: takes no digest",
		"oci-archive:/i.tar@" + digest:  "oci-archive: takes no digest",
		"docker-archive:/i:a@" + digest: "docker-archive: takes no digest",
		"dir:/srv/i@" + digest:          "dir: takes no digest",
		"dir:/srv/i:v1":                 "no tag",
		"x/" + strings.Repeat("_", 100): "not part of",
	} {
		t.Run(in, func(t *testing.T) {
			t.Parallel()
			_, err := reference.Parse(in)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Parse(%q) = %v, want an error with %q", in, err, want)
			}
		})
	}
}

func TestMoving(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]bool{
		"nginx": true, "nginx:latest": true, "nginx:1": false, "nginx@" + digest: false, "oci:/a:latest": false,
	} {
		got, err := reference.Parse(in)
		if err != nil || got.Moving() != want {
			t.Errorf("Parse(%q).Moving() = %v, %v, want %v", in, got.Moving(), err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"nginx:1", "oci:/a:b", "a@" + digest, "[::1]:1/x", "::::", "@@@", "///"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := reference.Parse(s)
		if err == nil && r.Local() && (strings.Contains(r.Path, "/../") || !strings.HasPrefix(r.Path, "/")) {
			t.Errorf("Parse(%q) let the path %q through", s, r.Path)
		}
	})
}
