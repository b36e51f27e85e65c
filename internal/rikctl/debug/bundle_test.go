package debug

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const canary = "c4n4ry5ecretv4lue"

var at = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// unpack returns the files of a bundle by their names.
func unpack(t *testing.T, b *bundle) map[string]string {
	t.Helper()
	var packed bytes.Buffer
	if err := b.write(&packed); err != nil {
		t.Fatal(err)
	}
	plain, err := gzip.NewReader(&packed)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(plain); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		name, ok := strings.CutPrefix(header.Name, "rik-debug-20261128-120000/")
		if !ok || path.Clean(header.Name) != header.Name || header.Mode != 0o600 {
			t.Errorf("file %q with the mode %o", header.Name, header.Mode)
		}
		files[name] = string(content)
	}
}

// machine is a machine with rik, whose programs print the given texts.
func machine(t *testing.T, files map[string]string, programs map[string]string) local {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return local{root: root, run: func(_ context.Context, name string, args ...string) ([]byte, error) {
		line := strings.Join(append([]string{name}, args...), " ")
		for _, begin := range slices.Sorted(maps.Keys(programs)) {
			if strings.HasPrefix(line, begin) {
				return []byte(programs[begin]), nil
			}
		}
		return nil, fmt.Errorf("%s: %w", name, exec.ErrNotFound)
	}}
}

func TestLocal(t *testing.T) {
	t.Parallel()
	l := machine(t, map[string]string{
		"etc/default/rik":             "RIK_SERVER_FLAGS=\"--datastore-endpoint postgres://rik:" + canary + "1@db/rik\"\n",
		"etc/default/riklet":          "RIK_SERVER=https://10.0.0.1:5000\nRIK_TOKEN=rik1." + strings.Repeat("ab", 32) + "." + canary + "2\n",
		"etc/rik/registries/auth.cfg": `{"auths":{"r.example":{"auth":"` + canary + `3"}}}`,
	}, map[string]string{
		"systemctl status":          "rik.service\n  /usr/lib/rik/rik server --token " + canary + "4\n",
		"journalctl --unit rik ":    "level=info msg=started\nlevel=warn url=https://u:" + canary + "5@r.example\npanic: " + canary + "1 again\n",
		"riklet doctor -o json":     `{"findings":[{"fix":"x && y"}]}`,
		"journalctl --unit riklet ": "-- No entries --\n",
	})
	b := newBundle(at)
	collectLocal(t.Context(), b, l, options{since: time.Hour})
	files := unpack(t, b)
	for name, want := range map[string]string{
		"index.txt":                         "local/journal-rik.txt",
		"local/etc/default/rik":             "postgres://REDACTED@db/rik",
		"local/etc/default/riklet":          "RIK_SERVER=https://10.0.0.1:5000\nRIK_TOKEN=REDACTED",
		"local/etc/rik/registries/auth.cfg": `{"auths":{"r.example":{"auth":"REDACTED"}}}`,
		"local/status-rik.txt":              "rik server --token REDACTED",
		"local/journal-rik.txt":             "level=info msg=started\nlevel=warn url=https://REDACTED@r.example\npanic: REDACTED again",
		"local/doctor.json":                 "x && y",
		"local/journal-riklet.txt":          "No entries",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s = %q, want %q", name, files[name], want)
		}
	}
	for name, content := range files {
		if strings.Contains(content, canary) {
			t.Errorf("%s has a canary:\n%s", name, content)
		}
	}
}

// Nothing of a machine without rik is collected.
func TestLocalWithoutRik(t *testing.T) {
	t.Parallel()
	b := newBundle(at)
	collectLocal(t.Context(), b, machine(t, nil, map[string]string{"journalctl": "x"}), options{since: time.Hour})
	if files := unpack(t, b); len(files) != 1 {
		t.Errorf("files %v, want only the index", slices.Collect(maps.Keys(files)))
	}
}

// TestErrorsAreListed makes sure that one file that is missing does not prevent the others.
func TestErrorsAreListed(t *testing.T) {
	t.Parallel()
	b := newBundle(at)
	l := machine(t, map[string]string{"etc/default/rik": "A=b\n"}, nil)
	collectLocal(t.Context(), b, l, options{since: time.Hour})
	b.text("server/metrics.txt", nil, errors.New("Get https://me:"+canary+"@10.0.0.1/metrics:\nforbidden"))
	b.text("server/half.txt", []byte("a part"), errors.New("cut short"))
	b.text("server/long.txt", bytes.Repeat([]byte("a line of a log\n"), maxFileBytes/16+1), nil)
	files := unpack(t, b)
	index := files["index.txt"]
	for _, want := range []string{"local/journal-rik.txt", "missing: journalctl: executable file not found", "server/metrics.txt", "missing: Get https://REDACTED@10.0.0.1/metrics: forbidden", "incomplete: cut short", "incomplete: only the first 16 MiB"} {
		if !strings.Contains(index, want) {
			t.Errorf("the index lacks %q:\n%s", want, index)
		}
	}
	if strings.Contains(index, canary) || files["local/etc/default/rik"] != "A=b\n" || files["server/half.txt"] != "a part" || !strings.HasSuffix(files["server/long.txt"], "[cut off here]\n") {
		t.Errorf("index:\n%s", index)
	}
	if n := len(b.failed()); n < 6 {
		t.Errorf("%d failures, want all of them", n)
	}
}
