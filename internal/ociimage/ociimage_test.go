package ociimage

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

var demo = Spec{
	Files: map[string]File{
		"/bin/app":    {Content: []byte("#!"), Mode: 0o755},
		"bin/alias":   {HardLink: "bin/app"},
		"etc/deep/at": {Link: "/bin/app"},
		"tmp":         {Dir: true, Mode: 0o777 | os.ModeSticky},
	},
	Entrypoint:   []string{"/bin/app"},
	ExposedPorts: []string{"80/tcp"},
}

func TestTarNamesParentsFirst(t *testing.T) {
	t.Parallel()
	data, err := Tar(demo.Files)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	tr := tar.NewReader(bytes.NewReader(data))
	for {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, hdr.FileInfo().Mode().String()+" "+hdr.Name)
	}
	want := []string{
		"drwxr-xr-x bin/", "-rwxr-xr-x bin/app", "drwxr-xr-x etc/", "drwxr-xr-x etc/deep/",
		"Lrwxrwxrwx etc/deep/at", "dtrwxrwxrwx tmp/", "-rw-r--r-- bin/alias",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}

func TestWriteIsReproducibleAndWhole(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := Write(dir, "v1", demo)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Write(dir, "v2", demo)
	if err != nil {
		t.Fatal(err)
	}
	if first != second {
		t.Errorf("one Spec has two digests: %s and %s", first, second)
	}
	data, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var index v1.Index
	if err := json.Unmarshal(data, &index); err != nil {
		t.Fatal(err)
	}
	if len(index.Manifests) != 2 {
		t.Errorf("the index has %d images, want both tags", len(index.Manifests))
	}
	blobs, err := filepath.Glob(filepath.Join(dir, "blobs/sha256/*"))
	if err != nil || len(blobs) != 3 {
		t.Fatalf("blobs: got %d (%v), want manifest, config and layer", len(blobs), err)
	}
	for _, blob := range blobs {
		data, err := os.ReadFile(blob)
		if err != nil {
			t.Fatal(err)
		}
		if got := digest.FromBytes(data).Encoded(); got != filepath.Base(blob) {
			t.Errorf("blob %s hashes to %s", blob, got)
		}
	}
}

func TestRegistryServes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want, err := Write(dir, "v1", demo)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(&Registry{Dir: dir, Username: "ann", Password: "secret"})
	t.Cleanup(srv.Close)
	for _, tc := range []struct {
		path, user string
		status     int
	}{
		{"/v2/", "", http.StatusUnauthorized},
		{"/v2/", "ann", http.StatusOK},
		{"/v2/app/manifests/v1", "ann", http.StatusOK},
		{"/v2/a/b/manifests/" + want, "ann", http.StatusOK},
		{"/v2/app/blobs/" + want, "ann", http.StatusOK},
		{"/v2/app/manifests/none", "ann", http.StatusNotFound},
		{"/v2/app/blobs/../../etc", "ann", http.StatusBadRequest},
		{"/v2/app/blobs/sha256:" + strings.Repeat("0", 64), "ann", http.StatusNotFound},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+tc.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tc.user != "" {
			req.SetBasicAuth(tc.user, "secret")
		}
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != tc.status {
			t.Errorf("GET %s = %d, want %d", tc.path, res.StatusCode, tc.status)
		}
	}
}

func TestBusyboxHasAShell(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat(BusyboxPath); err != nil {
		t.Skip("busybox-static is not installed")
	}
	spec, err := BusyboxSpec()
	if err != nil {
		t.Fatal(err)
	}
	if got := spec.Files["bin/sh"].Link; got != "busybox" {
		t.Errorf("/bin/sh links to %q, want busybox", got)
	}
	ref, err := Busybox(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(ref, "oci:/") || !strings.HasSuffix(ref, ":latest") {
		t.Errorf("Busybox returned %q", ref)
	}
}

// Archives of the same image are equal, whatever the clock and the umask are.
func TestArchivesAreReproducible(t *testing.T) {
	t.Parallel()
	spec := Spec{Files: map[string]File{"bin/app": {Content: []byte("app"), Mode: 0o755}}}
	for name, write := range map[string]func(file string) (string, error){
		"oci":    func(file string) (string, error) { return WriteArchive(file, "v1", spec) },
		"index":  func(file string) (string, error) { return WriteIndexArchive(file, "v1", spec) },
		"docker": func(file string) (string, error) { return WriteDockerArchive(file, "example.com/app:1", spec) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "archive.tar")
			if _, err := write(file); err != nil {
				t.Fatal(err)
			}
			archive, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer archive.Close()
			reader, entries := tar.NewReader(archive), 0
			for {
				h, err := reader.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				entries++
				if time.Since(h.ModTime) < time.Hour || h.Uid != 0 || h.Uname != "" || h.Mode&0o022 != 0 {
					t.Errorf("%s has the time %s, the owner %d (%s) and the mode %o", h.Name, h.ModTime, h.Uid, h.Uname, h.Mode)
				}
			}
			if entries < 3 {
				t.Errorf("the archive has %d entries, want more", entries)
			}
		})
	}
}
