package image

import (
	"errors"
	"strings"
	"testing"

	"rik.dev/rik/api/rik/v1alpha1"
)

const someDigest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// Fault 14: an image without ":tag" caused a panic, and registries with a port and digests were
// parsed wrongly.
func TestFault14ReferencesWithoutTagWithPortAndDigest(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"nginx":                                      "docker://docker.io/library/nginx:latest",
		"nginx:1.27":                                 "docker://docker.io/library/nginx:1.27",
		"docker://nginx":                             "docker://docker.io/library/nginx:latest",
		"user/app":                                   "docker://docker.io/user/app:latest",
		"localhost:5000/app":                         "docker://localhost:5000/app:latest",
		"127.0.0.1:5000/a/b/c:v1":                    "docker://127.0.0.1:5000/a/b/c:v1",
		"[::1]:5000/app":                             "docker://[::1]:5000/app:latest",
		"registry.example:5000/team/app":             "docker://registry.example:5000/team/app:latest",
		"registry.example/app@" + someDigest:         "docker://registry.example/app@" + someDigest,
		"registry.example:5000/app@" + someDigest:    "docker://registry.example:5000/app@" + someDigest,
		"registry.example:5000/app:v1@" + someDigest: "docker://registry.example:5000/app@" + someDigest,
		"docker://oci:v1":                            "docker://docker.io/library/oci:v1",
		"oci:/srv/layout":                            "oci:/srv/layout",
		"oci:/srv/layout:v1":                         "oci:/srv/layout:v1",
		"oci:/srv/layout:example.com/app:v1":         "oci:/srv/layout:example.com/app:v1",
		"oci-archive:/srv/a.tar:v1":                  "oci-archive:/srv/a.tar:v1",
		"docker-archive:/srv/a.tar":                  "docker-archive:/srv/a.tar",
		"docker-archive:/srv/a.tar:app:v1":           "docker-archive:/srv/a.tar:app:v1",
		"docker-archive:/srv/a.tar:@3":               "docker-archive:/srv/a.tar:@3",
		"docker-archive:/srv/a.tar:h:5000/a:v1":      "docker-archive:/srv/a.tar:h:5000/a:v1",
		"dir:/srv/image":                             "dir:/srv/image",
	} {
		got, err := parseReference(in)
		if err != nil || got.String() != want {
			t.Errorf("parseReference(%q) = %q, %v; want %q", in, got, err, want)
			continue
		}
		if again, err := parseReference(got.String()); err != nil || again != got {
			t.Errorf("parseReference(%q) = %q, %v; want itself", got, again, err)
		}
	}
}

func TestParseReferenceRefuses(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		"", " ", "app/UPPER", "app:", ":tag", "app:bad tag", "app\n", "app\x00", "-flag", "a//b", "app@sha256:short", "app@md5:" + strings.Repeat("0", 32),
		"host:port/app", "http://registry/app", "https://registry/app", "docker://", "docker://UP", "file:///etc/passwd",
		"oci:v1", "oci:relative/dir", "oci:./dir", "oci:", "oci:/", "oci:/srv/../etc", "oci:/srv/", "oci:/srv/layout:", "oci:/srv/layout:../x",
		"oci:/srv/layout:a b", "oci-archive:a.tar.gz:/x", "docker-archive:/a.tar:", "docker-archive:/a.tar:@-1", "docker-archive:/a.tar:@x",
		"docker-archive:/a.tar:app@" + someDigest, "dir:/srv/image:v1", "dir:srv/x",
		"oci:/srv/layout@" + someDigest, "oci:/srv/layout:v1@" + someDigest, "oci-archive:/a.tar@" + someDigest, "dir:/srv/image@" + someDigest, "oci:/srv/layout@sha256:12",
		strings.Repeat("a", 5000), strings.Repeat("0", 64),
	} {
		if got, err := parseReference(in); !errors.Is(err, ErrInvalidReference) {
			t.Errorf("parseReference(%.60q) = %q, %v; want %v", in, got, err, ErrInvalidReference)
		}
	}
}

func TestDefaultPolicy(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		ref  string
		in   v1alpha1.PullPolicy
		want v1alpha1.PullPolicy
	}{
		{"nginx", "", v1alpha1.PullAlways},
		{"nginx:latest", "", v1alpha1.PullAlways},
		{"nginx:1", "", v1alpha1.PullIfNotPresent},
		{"nginx@" + someDigest, "", v1alpha1.PullIfNotPresent},
		{"oci:/srv/layout:latest", "", v1alpha1.PullIfNotPresent},
		{"nginx", v1alpha1.PullNever, v1alpha1.PullNever},
		{"nginx:1", v1alpha1.PullAlways, v1alpha1.PullAlways},
	} {
		ref, err := parseReference(tc.ref)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ref.policyOf(tc.in); err != nil || got != tc.want {
			t.Errorf("%s: policyOf(%q) = %q, %v; want %q", tc.ref, tc.in, got, err, tc.want)
		}
	}
	if _, err := (parsedReference{}).policyOf("Sometimes"); err == nil {
		t.Error("an unknown policy is accepted")
	}
}

func FuzzParseReference(f *testing.F) {
	for _, s := range []string{"nginx", "h:5000/a@" + someDigest, "oci:/a:b", "docker-archive:/a:@1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ref, err := parseReference(s)
		if err != nil {
			return
		}
		if again, err := parseReference(ref.String()); err != nil || again != ref {
			t.Errorf("parseReference(%q) = %q, %v; want itself", ref, again, err)
		}
	})
}
