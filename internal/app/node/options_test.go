package node

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"rik.dev/rik/internal/install"
	"rik.dev/rik/internal/riklet/image"
)

func TestFindProgramsNamesTheFlag(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plain, program := filepath.Join(dir, "plain"), filepath.Join(dir, "program")
	for path, mode := range map[string]os.FileMode{plain: 0o644, program: 0o755} {
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		o     Options
		wants []string
	}{
		"runc":     {Options{Runc: "/nope", Shim: program, Unpacker: program, NameServer: program}, []string{"--runc /nope", "does not exist", "remove the flag"}},
		"shim":     {Options{Runc: program, Shim: plain, Unpacker: program, NameServer: program}, []string{"--shim " + plain, "not executable"}},
		"unpacker": {Options{Runc: program, Shim: program, Unpacker: dir, NameServer: program}, []string{"--unpacker " + dir, "not a file"}},
		"all":      {Options{Runc: "/a", Shim: "/b", Unpacker: "/c", NameServer: "/d"}, []string{"--runc", "--shim", "--unpacker", "--name-server"}},
		"fine":     {Options{Runc: program, Shim: program, Unpacker: program, NameServer: program}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			problems := tc.o.findPrograms()
			text := ""
			if err := errors.Join(problems...); err != nil {
				text = err.Error()
			}
			if (text == "") != (tc.wants == nil) {
				t.Errorf("findPrograms = %q", text)
			}
			for _, want := range tc.wants {
				if !strings.Contains(text, want) {
					t.Errorf("findPrograms = %q, want the text %q", text, want)
				}
			}
		})
	}
}

// Not parallel: it changes the PATH.
func TestFindProgramsNamesTheNextStep(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	o := Options{}
	err := errors.Join(o.findPrograms()...)
	if err == nil {
		t.Fatal("findPrograms found programs in an empty directory")
	}
	for _, want := range []string{"runc is neither", "rik-shim is neither", "rik-unpack is neither", "rik-dns is neither", "make build", "--runc", "--shim", "--unpacker"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("findPrograms = %q, want the text %q", err, want)
		}
	}
}

// A server validates the options of its node before the node does.
func TestMissingGuestFilesAreAccepted(t *testing.T) {
	t.Parallel()
	o := Options{VMM: VMMAuto}
	for _, which := range []string{"first", "second"} {
		if err := errors.Join(o.findGuest()...); err != nil {
			t.Errorf("the %s time findGuest = %v, want nothing: no flag names a guest", which, err)
		}
	}
}

func TestMainExitCodes(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	for name, tc := range map[string]struct {
		line string
		want int
	}{
		"unknown flag":     {"--bogus", exitUsage},
		"a word too much":  {"purge now", exitUsage},
		"no server":        {"--server=", exitUsage},
		"unknown level":    {"--log-level=loud", exitUsage},
		"unknown format":   {"--log-format=xml", exitUsage},
		"unknown resource": {"--server=https://127.0.0.1:1 --token= --reserved=foo=1", exitUsage},
		"bad name":         {"--server=https://127.0.0.1:1 --token= --node-name=Bad_Name!", exitUsage},
		"bad taint":        {"--server=https://127.0.0.1:1 --token= --node-taint=a=b:Foo", exitUsage},
		"no token":         {"--server=https://127.0.0.1:1 --token-file=" + token, exitError},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Main(t.Context(), strings.Fields(tc.line)); got != tc.want {
				t.Errorf("Main(%s) = %d, want %d", tc.line, got, tc.want)
			}
		})
	}
}

func TestImageLimits(t *testing.T) {
	t.Parallel()
	none := Options{}
	if limits, err := none.imageLimits(); err != nil || limits != (image.Limits{}) {
		t.Errorf("without flags: %+v, %v", limits, err)
	}
	all := Options{PullTimeout: time.Hour, PullStallTimeout: time.Minute, ImageMaxSize: "32Gi", ImageMaxDownload: "1G", ImageMaxEntries: 7}
	want := image.Limits{Bytes: 32 << 30, CompressedBytes: 1e9, Entries: 7, Time: time.Hour, Stall: time.Minute}
	if limits, err := all.imageLimits(); err != nil || limits != want {
		t.Errorf("imageLimits() = %+v, %v, want %+v", limits, err, want)
	}
	wrong := Options{PullTimeout: -1, PullStallTimeout: -1, ImageMaxSize: "much", ImageMaxDownload: "-1", ImageMaxEntries: -1}
	_, err := wrong.imageLimits()
	for _, flag := range []string{"--image-pull-timeout", "--image-pull-stall-timeout", "--image-max-size", "--image-max-download", "--image-max-entries"} {
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("the error %v does not name %s", err, flag)
		}
	}
}

// TestJoinSettings stores the token, and not the path of its file, which the service may not read.
func TestJoinSettings(t *testing.T) {
	t.Parallel()
	token := "rik1." + strings.Repeat("0a", 32) + ".abcd12.0123456789abcdef"
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := joinSettings("https://10.0.0.1:5000", file)
	want := []install.Setting{{Name: "RIK_JOIN", Value: "https://10.0.0.1:5000"}, {Name: "RIK_JOIN_TOKEN", Value: token}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("joinSettings() = %v, %v, want %v", got, err, want)
	}
	for _, wrong := range [][2]string{{"https://10.0.0.1:5000", ""}, {"", file}, {"http://10.0.0.1", file}} {
		if got, err := joinSettings(wrong[0], wrong[1]); err == nil {
			t.Errorf("joinSettings(%q) = %v, want an error", wrong, got)
		}
	}
}
