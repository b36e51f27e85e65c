package place

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// store starts a server of the S3 protocol, for tests, over TLS on loopback. It returns after the
// environment names it.
func store(t *testing.T) {
	t.Helper()
	memory := s3mem.New()
	if err := memory.CreateBucket("backups"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewTLSServer(gofakes3.New(memory).Server())
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL_S3": server.URL, "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1", "AWS_CA_BUNDLE": file,
	} {
		t.Setenv(name, value)
	}
}

// TestPlaces runs the same operations on a directory and on a bucket.
func TestPlaces(t *testing.T) {
	store(t)
	for name, address := range map[string]string{"directory": t.TempDir() + "/new/", "bucket": "s3://backups/rik/daily"} {
		t.Run(name, func(t *testing.T) {
			at, file, err := Parse(address)
			if err != nil || file != "" {
				t.Fatalf("Parse() = %q, %v", file, err)
			}
			large := bytes.Repeat([]byte("0123456789abcdef"), (2*partBytes+1000)/16)
			for _, file := range []string{"b.rikbackup", "a.rikbackup", "c.txt"} {
				if err := at.Put(t.Context(), file, bytes.NewReader(large)); err != nil {
					t.Fatal(err)
				}
			}
			broken := errors.New("the stream broke")
			if err := at.Put(t.Context(), "d.rikbackup", io.MultiReader(bytes.NewReader(large), iotest.ErrReader(broken))); err == nil {
				t.Error("Put() of a stream that broke succeeded")
			}
			items, err := at.List(t.Context())
			if err != nil || len(items) != 2 || items[0].Name != "a.rikbackup" || items[1].Bytes != int64(len(large)) {
				t.Fatalf("List() = %v, %v, want a and b", items, err)
			}
			again, file, err := Parse(at.Path("a.rikbackup"))
			if err != nil || file != "a.rikbackup" {
				t.Fatalf("Parse(%q) = %q, %v", at.Path("a.rikbackup"), file, err)
			}
			in, err := again.Open(t.Context(), file)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(in)
			if err := errors.Join(err, in.Close()); err != nil || !bytes.Equal(got, large) {
				t.Errorf("Open() returned %d bytes, %v", len(got), err)
			}
			if _, err := at.Open(t.Context(), "none.rikbackup"); err == nil {
				t.Error("Open() of a name that does not exist succeeded")
			}
			if err := at.Remove(t.Context(), "a.rikbackup"); err != nil {
				t.Error(err)
			}
			if items, err := at.List(t.Context()); err != nil || len(items) != 1 {
				t.Errorf("List() after Remove() = %v, %v", items, err)
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if err := at.Put(ended, "e.rikbackup", bytes.NewReader(large)); err == nil {
				t.Error("Put() with a context that has ended succeeded")
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	t.Setenv("AWS_ENDPOINT_URL_S3", "")
	t.Setenv("AWS_ENDPOINT_URL", "")
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	for address, says := range map[string]string{"": "is empty", "ftp://x": "neither", "s3://": "no bucket", "s3://b/x": "AWS_ACCESS_KEY_ID"} {
		if _, _, err := Parse(address); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("Parse(%q) = %v, want an error saying %q", address, err, says)
		}
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
	for endpoint, says := range map[string]string{"http://store.example": "plain http", "https://u:hunter2@store.example": "is not a URL", "x": "is not a URL"} {
		t.Setenv("AWS_ENDPOINT_URL_S3", endpoint)
		if _, _, err := Parse("s3://b/x"); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Parse() with the store %q = %v, want an error saying %q", endpoint, err, says)
		}
	}
	at, name, err := Parse("some/file")
	if err != nil || name != "file" || at.Path(name) != "some/file" {
		t.Errorf("Parse() of a file = %q, %v", name, err)
	}
}
