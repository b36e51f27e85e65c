package runner

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/ociimage"
)

// pipes creates an image in which the user and group databases are pipes without a writer.
func pipes(t *testing.T) (reference string) {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for _, name := range []string{"etc/passwd", "etc/group"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeFifo, Mode: 0o666}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	spec, err := ociimage.BusyboxSpec()
	if err != nil {
		t.Fatal(err)
	}
	spec.Layers = []ociimage.Layer{{Tar: layer.Bytes()}}
	dir := t.TempDir()
	if _, err := ociimage.Write(dir, "latest", spec); err != nil {
		t.Fatal(err)
	}
	return "oci:" + dir + ":latest"
}

// A lookup of a user or of HOME in a pipe would block forever.
func TestPrivilegedUserFilesThatArePipes(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	reference := pipes(t)
	for uid, user := range map[string]string{"root": "", "number": "7:8", "name": "app"} {
		// id(1) is unsuitable: it looks up the user's name in the pipe.
		c := sh("main", "test -p /etc/passwd && while read key id rest; do case $key in Uid:|Gid:) echo $id;; esac; done < /proc/self/status; echo $HOME")
		c.Image, c.User = reference, user
		n.ensure(podOf(uid, rikv1alpha1.RestartNever, c))
	}
	for uid, want := range map[string]string{"root": "0\n0\n/\n", "number": "7\n8\n/\n"} {
		n.awaitPhase(uid, rikv1alpha1.InstanceCompleted)
		if got := n.log(uid, ""); got != want {
			t.Errorf("log of %s = %q, want %q", uid, got, want)
		}
	}
	s := n.awaitPhase("name", rikv1alpha1.InstanceFailed)
	if s.Reason != reasonConfig || !strings.Contains(s.Message, "/etc/passwd is not a regular file") {
		t.Errorf("status = %+v, want it to name the file", s)
	}
}

func TestPrivilegedHomeIsTheUsers(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	for uid, user := range map[string]string{"root": "", "nobody": "nobody", "stranger": "4711"} {
		c := sh("main", "echo $HOME")
		c.User = user
		n.ensure(podOf(uid, rikv1alpha1.RestartNever, c))
	}
	for uid, want := range map[string]string{"root": "/root\n", "nobody": "/\n", "stranger": "/\n"} {
		n.awaitPhase(uid, rikv1alpha1.InstanceCompleted)
		if got := n.log(uid, ""); got != want {
			t.Errorf("HOME of %s = %q, want %q", uid, got, want)
		}
	}
}

// A runtime that hangs once delayed the end of its instance for minutes.
func TestPrivilegedHangingRuntimeIsCanceled(t *testing.T) {
	t.Parallel()
	reference := pipes(t)
	for name, script := range map[string]string{
		"itself": `case "$*" in *" run "*) sleep 100000 ;; esac`,
		// Without HOME, runc's child opens the pipe inside the container.
		"inside": `for a in "$@"; do [ "$last" = --bundle ] && sed -i 's/"HOME=/"NOT_HOME=/' "$a/config.json"; last=$a; done`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			hanging := filepath.Join(n.dir, "hanging")
			if err := os.WriteFile(hanging, []byte("#!/bin/sh\n"+script+"\nexec "+n.cfg.Runc+" \"$@\"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			n.cfg.Runc = hanging
			n.start()
			c := sh("main", forever)
			c.Image = reference
			n.ensure(podOf("u1", rikv1alpha1.RestartAlways, c))
			eventually(t, func() string {
				if attempt, _ := n.driver.paths.LastRun("u1", "main"); attempt == 0 {
					return "the runtime was not called"
				}
				return ""
			})
			n.stop("u1", time.Hour) // it ends much earlier
		})
	}
}
