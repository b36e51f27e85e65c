package projected

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// files makes a volume's files, in a fixed order.
func files(mode fs.FileMode, content map[string]string) []File {
	var out []File
	for _, path := range slices.Sorted(maps.Keys(content)) {
		out = append(out, File{Path: path, Mode: mode, Data: []byte(content[path])})
	}
	return out
}

// read returns the regular files that a process sees in a volume.
func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			continue
		}
		target, err := filepath.EvalSymlinks(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		err = filepath.WalkDir(target, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			got[filepath.Join(e.Name(), strings.TrimPrefix(path, target))] = string(data)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return got
}

func TestPublishShowsExactlyTheFiles(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "v")
	for _, content := range []map[string]string{
		{"a": "1", "b": "2"}, {"a": "1", "b": "2"}, {"b": "3", "deep/er": "4", "deep/est": ""}, {"deep": "now a file"}, {},
	} {
		if err := Publish(dir, files(0o640, content)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(content, read(t, dir)); diff != "" {
			t.Errorf("files (-want +got):\n%s", diff)
		}
		hidden, err := filepath.Glob(filepath.Join(dir, "..*"))
		if err != nil || len(hidden) != 2 {
			t.Errorf("the volume has %q, %v, want ..data and the directory of the files", hidden, err)
		}
	}
}

// A process that has opened the directory of the files keeps all old files.
func TestPublishSwitchesAllFilesAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := Publish(dir, files(0o644, map[string]string{"a": "old", "b": "old"})); err != nil {
		t.Fatal(err)
	}
	before, err := os.Readlink(filepath.Join(dir, current))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		if target, err := os.Readlink(filepath.Join(dir, name)); err != nil || target != current+"/"+name {
			t.Errorf("%s leads to %q, %v, want a link through %s", name, target, err, current)
		}
	}
	if err := Publish(dir, files(0o644, map[string]string{"a": "new", "b": "new"})); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Readlink(filepath.Join(dir, current)); err != nil || after == before {
		t.Errorf("%s leads to %q, %v after a change, as before it", current, after, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, before)); !os.IsNotExist(err) {
		t.Errorf("the old files are still there: %v", err)
	}
}

// The mode is part of the version: a change of the mode alone is published.
func TestPublishSetsTheMode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, mode := range []fs.FileMode{0o640, 0o400, 0o777} {
		if err := Publish(dir, files(mode, map[string]string{"a": "1"})); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(filepath.Join(dir, "a")); err != nil || info.Mode().Perm() != mode {
			t.Errorf("mode %v, %v, want %v", info.Mode(), err, mode)
		}
	}
}

// A failed Publish leaves the old files, and the next one succeeds.
func TestPublishRefusesPathsThatLeaveTheVolume(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	dir := filepath.Join(parent, "v")
	kept := map[string]string{"a": "1"}
	if err := Publish(dir, files(0o644, kept)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"../out", "/abs", "..data", "..data/a", "x/../../y", "x/../y", "x//y", ".", "..", ""} {
		if err := Publish(dir, []File{{Path: path, Mode: 0o644}}); err == nil {
			t.Errorf("a file at %q is accepted", path)
		}
	}
	if diff := cmp.Diff(kept, read(t, dir)); diff != "" {
		t.Errorf("files after refused ones (-want +got):\n%s", diff)
	}
	if entries, err := os.ReadDir(parent); err != nil || len(entries) != 1 {
		t.Errorf("next to the volume: %v, %v", entries, err)
	}
	next := map[string]string{"b": "2"}
	if err := Publish(dir, files(0o644, next)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(next, read(t, dir)); diff != "" {
		t.Errorf("files after the next change (-want +got):\n%s", diff)
	}
}
