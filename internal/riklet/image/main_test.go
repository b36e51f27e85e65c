package image

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"rik.dev/rik/internal/ociimage"
	"rik.dev/rik/internal/riklet/image/unpack"
	"rik.dev/rik/internal/testkit/output"
)

// TestMain makes the test binary the unpacker, so that the store's child is a process in the
// tests too.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "unpack" {
		if err := unpack.Unpack(context.Background(), nil, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// The tests must not use the credentials of the user who runs them.
	home, err := os.MkdirTemp("", "rik-image")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, name := range []string{"HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"} {
		if err := os.Setenv(name, home); err != nil {
			panic(err)
		}
	}
	_ = os.Unsetenv("REGISTRY_AUTH_FILE")
	code := m.Run()
	_ = os.RemoveAll(home)
	os.Exit(code)
}

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

// open opens a store in a new directory.
func open(tb testing.TB, change func(*Config)) *Store {
	tb.Helper()
	return openAt(tb, filepath.Join(tb.TempDir(), "store"), change)
}

func openAt(tb testing.TB, root string, change func(*Config)) *Store {
	tb.Helper()
	cfg := Config{
		Root:     root,
		Unpacker: []string{"/proc/self/exe", "unpack"},
		Limits:   Limits{ReserveBytes: 1},
		Logger:   slog.New(slog.NewTextHandler(tb.Output(), nil)),
		// Tests must not use this machine's mirrors either.
		RegistriesConf: os.DevNull,
		// The registries of the tests are on this machine.
		AllowNetworks: loopback,
	}
	if change != nil {
		change(&cfg)
	}
	s, err := Open(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	return s
}

// layout writes spec under the tag v1 of a new OCI layout.
func layout(tb testing.TB, spec ociimage.Spec) (dir, ref, digest string) {
	tb.Helper()
	dir = tb.TempDir()
	digest, err := ociimage.Write(dir, "v1", spec)
	if err != nil {
		tb.Fatal(err)
	}
	return dir, "oci:" + dir + ":v1", digest
}

// small returns an image of two layers.
func small() ociimage.Spec {
	return ociimage.Spec{
		Files:      map[string]ociimage.File{"etc/motd": {Content: []byte("hello\n")}, "bin/app": {Content: []byte("#!"), Mode: 0o755}},
		Layers:     []ociimage.Layer{{Files: map[string]ociimage.File{"etc/motd": {Content: []byte("hello again\n")}}}},
		Entrypoint: []string{"/bin/app"},
		Env:        []string{"A=1"},
	}
}

// requireNothingLeft fails the test if a pull left more than the given number of layers.
func requireNothingLeft(tb testing.TB, s *Store, layers int) {
	tb.Helper()
	for dir, want := range map[string]int{tmpDir: 0, layersDir: layers} {
		entries, err := os.ReadDir(s.path(dir))
		if err != nil {
			tb.Fatal(err)
		}
		if len(entries) != want {
			tb.Errorf("%s has %d entries, want %d: %v", dir, len(entries), want, entries)
		}
	}
}

// lines is a log that a test can read.
type lines struct{ output.Buffer }

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// await waits until the registry holds a download, and fails if the pull ends before.
func await(tb testing.TB, held <-chan struct{}, done <-chan error) {
	tb.Helper()
	select {
	case <-held:
	case err := <-done:
		tb.Fatalf("the pull ended before it asked for a blob: %v", err)
	}
}
