package rikctl

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"rik.dev/rik/internal/backup"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/config"
)

// TestBackupCommands runs against a fake server that streams a backup, a part of one, or an error.
// The tests of the server cover its behavior.
func TestBackupCommands(t *testing.T) {
	t.Parallel()
	var file bytes.Buffer
	w, err := backup.NewWriter(&file, backup.Recipients{Unencrypted: true}, backup.Header{Version: "v1", Cluster: "c1", Profile: "cluster", Revision: 7, Term: 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		if err := w.AddEntry(backup.Entry{Key: []byte("/registry/secrets/default/" + name), Value: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Close(); err != nil {
		t.Fatal(err)
	}
	var size atomic.Int64
	size.Store(int64(file.Len()))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method+" "+r.URL.Path != "POST "+backup.Path || size.Load() == 0 {
			http.Error(w, "only the group system:masters may create a backup", http.StatusForbidden)
			return
		}
		_, _ = w.Write(file.Bytes()[:size.Load()])
	}))
	t.Cleanup(server.Close)
	m := newMachine(t)
	m.env[config.EnvServer] = server.URL
	dir := t.TempDir()
	pass, wrong := filepath.Join(dir, "pass"), filepath.Join(dir, "wrong")
	for path, text := range map[string]string{pass: "correct horse battery\n", wrong: "another passphrase\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	backups := filepath.Join(dir, "backups")
	one := filepath.Join(backups, "one.rikbackup")

	m.run(t, "backup", "create", one).check(t, clierror.ExitUsage, "--recipient", "--unencrypted", "certificate authority")
	m.run(t, "backup", "create", one, "--passphrase-file", pass).check(t, clierror.ExitOK, one, "2 objects at revision 7")
	m.run(t, "backup", "create", backups, "--unencrypted").check(t, clierror.ExitOK, backups+"/rik-2")
	m.run(t, "backup", "list", backups).check(t, clierror.ExitOK, "one.rikbackup", "rik-2", "SIZE")
	m.run(t, "backup", "list", backups, "-o", "json").check(t, clierror.ExitOK, `"name": "one.rikbackup"`)
	m.run(t, "backup", "list", one).check(t, clierror.ExitError, "rikctl backup show")
	m.run(t, "backup", "show", one, "--passphrase-file", pass).check(t, clierror.ExitOK, "c1", "secrets", "Objects:")
	m.run(t, "backup", "show", one, "--passphrase-file", wrong).check(t, clierror.ExitError, "cannot be decrypted")
	m.run(t, "backup", "show", one).check(t, clierror.ExitError, "cannot be decrypted", "give the passphrase")
	m.run(t, "backup", "show", pass).check(t, clierror.ExitError, "not a backup of rik")
	m.run(t, "backup", "verify", one, "--passphrase-file", pass, "--checksums").check(t, clierror.ExitOK, "2 objects")
	for _, line := range []string{"backup create", "backup create x --unencrypted --recipient age1x", "backup show", "backup list -o nonsense", "backup nonsense"} {
		m.run(t, strings.Fields(line)...).check(t, clierror.ExitUsage)
	}
	// Nothing is stored unless the whole backup arrived.
	size.Add(-10)
	m.run(t, "backup", "create", filepath.Join(backups, "two.rikbackup"), "--passphrase-file", pass).check(t, clierror.ExitError, "cut short")
	size.Store(0)
	m.run(t, "backup", "create", filepath.Join(backups, "three.rikbackup"), "--passphrase-file", pass).check(t, clierror.ExitDenied, "system:masters")
	entries, err := os.ReadDir(backups)
	if err != nil || len(entries) != 2 {
		t.Errorf("the directory has %v, %v, want two backups", entries, err)
	}
}
