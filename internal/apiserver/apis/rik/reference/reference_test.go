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
		strings.Repeat("a", 2000):       "must have at most",
		strings.Repeat("a", 300):        "must have at most 255",
		"Nginx":                         "lower-case",
		"nginx:":                        "not a valid tag",
		"nginx:-x":                      "not a valid tag",
		"nginx@sha256:12":               "not a digest",
		"nginx@":                        "not a digest",
		"host:port/x":                   "valid host of a registry",
		"http://example.com/x":          "transport",
		"docker://":                     "lower-case",
		"localhost:5000/":               "a repository is required",
		"a//b":                          "is not valid in the name",
		"../etc/passwd":                 "valid host of a registry",
		"oci:":                          "a path is required",
		"oci:./x":                       "absolute",
		"oci:/a/../etc":                 "must not contain",
		"dir:/":                         "root directory",
		"dir:/a/":                       "must not contain",
		"oci:/srv/image:$(reboot)":      "not a valid name",
		"containers-storage:/x/y":       "valid host of a registry",
		"docker-daemon:library/x:1":     "valid host of a registry",
		"x@" + digest + "@" + digest:    "not a digest",
		"oci:/srv/i@" + digest:          "oci: does not support digests",
		"oci:/srv/i:v1@" + digest:       "oci: does not support digests",
		"oci:/srv/i@sha256:12":          "oci: does not support digests",
		"oci-archive:/i.tar@" + digest:  "oci-archive: does not support digests",
		"docker-archive:/i:a@" + digest: "docker-archive: does not support digests",
		"dir:/srv/i@" + digest:          "dir: does not support digests",
		"dir:/srv/i:v1":                 "does not support tags",
		"x/" + strings.Repeat("_", 100): "is not valid in the name",
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
