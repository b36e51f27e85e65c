package datastore

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	logger := slog.New(slog.DiscardHandler)
	tests := []struct {
		name, endpoint, says string
	}{
		{"embedded", "", ""},
		{"https", "https://a:2379,https://b:2379", ""},
		{"plain loopback", "http://127.0.0.1:2379", ""},
		{"sqlite", "sqlite://", ""},
		{"postgres", "postgres://u:secret@db/rik?sslmode=verify-full", ""},
		{"postgres on loopback", "postgres://u:secret@127.0.0.1:5432/rik", ""},
		{"postgres on ipv6 loopback", "postgres://u:secret@[::1]:5432/rik", ""},
		{"postgres on a socket", "postgres://u:secret@/rik?host=/run/postgresql", ""},
		{"plain postgres elsewhere", "postgres://u:secret@db/rik", "does not use TLS"},
		{"postgres that may fall back", "postgres://u:secret@10.0.0.1:5432/rik?sslmode=prefer", "does not use TLS"},
		{"postgres elsewhere by its query", "postgres://u:secret@localhost/rik?host=db.example", "does not use TLS"},
		{"malformed postgres", "postgres://u:secret%zz@db/rik", "cannot be parsed"},
		{"postgres with a bad port", "postgres://u:secret@db:port/rik", "cannot be parsed"},
		{"mysql", "mysql://u:secret@tcp(db:3306)/rik?tls=true", ""},
		{"mysql on loopback", "mysql://u:secret@tcp(127.0.0.1:3306)/rik", ""},
		{"mysql on a socket", "mysql://u:secret@unix(/run/mysqld/mysqld.sock)/rik", ""},
		{"plain mysql elsewhere", "mysql://u:secret@tcp(db:3306)/rik", "does not use TLS"},
		{"mysql that may fall back", "mysql://u:secret@tcp(db:3306)/rik?tls=preferred", "does not use TLS"},
		{"malformed mysql", "mysql://u:secret@tcp(db:3306", "cannot be parsed"},
		{"no scheme", "db:2379", "no scheme"},
		{"unknown scheme", "redis://db", `"redis"`},
		{"plain http elsewhere", "http://10.0.0.1:2379", "plain http to another machine"},
		{"second of another kind", "https://a:2379,sqlite://x", `scheme "sqlite"`},
		{"no host", "https://", "not a URL"},
		{"password in it", "https://u:secret@a:2379", "contains a user name"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			err := Config{Endpoint: tc.endpoint, Dir: "/d", Logger: logger}.Validate()
			if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Validate() = %v, want an error saying %q", err, tc.says)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("Validate() = %v shows the password", err)
			}
		})
	}
	authority := Config{Endpoint: "postgres://u:secret@db/rik", Dir: "/d", CAFile: "ca.crt", Logger: logger}
	if err := authority.Validate(); err != nil {
		t.Errorf("Validate() with an authority, which makes it TLS = %v", err)
	}
	if err := (Config{Logger: logger}).Validate(); err == nil || !strings.Contains(err.Error(), "directory") {
		t.Errorf("Validate() without a directory = %v", err)
	}
	if err := (Config{Dir: "/d", Logger: logger, CertFile: "x"}).Validate(); err == nil || !strings.Contains(err.Error(), "together") {
		t.Errorf("Validate() with half a certificate = %v", err)
	}
}

// TestOpen runs the same writes and reads on each datastore of this process. It also uses a
// directory whose path is too long for a socket.
func TestOpen(t *testing.T) {
	t.Parallel()
	for name, endpoint := range map[string]string{"etcd": "", "sqlite": "sqlite://"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, dir := range []string{t.TempDir(), filepath.Join(t.TempDir(), strings.Repeat("deep/", 20))} {
				cfg := Config{Endpoint: endpoint, Dir: dir, Logger: slog.New(slog.DiscardHandler)}
				revision := writeOnce(t, cfg, 0)
				if again := writeOnce(t, cfg, revision); again <= revision {
					t.Errorf("revision after a restart = %d, want above %d", again, revision)
				}
			}
		})
	}
}

// writeOnce opens the datastore, checks that the key has the given revision (or does not exist,
// for 0), writes the key and closes the datastore.
func writeOnce(t *testing.T, cfg Config, want int64) int64 {
	t.Helper()
	store, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	socket := strings.TrimPrefix(store.Endpoint().Servers[0], "unix://")
	if info, err := os.Stat(filepath.Dir(socket)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory of the socket %s: %v, %v, want mode 0700", socket, info, err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: store.Endpoint().Servers, DialTimeout: time.Minute, Logger: zap.NewNop()})
	if err != nil {
		t.Fatalf("connecting: %v", err)
	}
	got, err := client.Get(t.Context(), "/registry/key")
	if err != nil {
		t.Fatalf("reading: %v", err)
	}
	if want == 0 && len(got.Kvs) != 0 || want != 0 && (len(got.Kvs) != 1 || got.Kvs[0].ModRevision != want) {
		t.Errorf("stored %v, want revision %d", got.Kvs, want)
	}
	revision := put(t, client, want)
	if err := errors.Join(client.Close(), store.Close()); err != nil {
		t.Errorf("closing: %v", err)
	}
	if _, err := os.Stat(filepath.Dir(socket)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("directory of the socket after closing: %v, want none", err)
	}
	return revision
}

// put runs the guarded transaction with which the API server writes. kine supports no other.
func put(t *testing.T, client *clientv3.Client, guard int64) int64 {
	t.Helper()
	const key = "/registry/key"
	answer, err := client.Txn(t.Context()).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", guard)).
		Then(clientv3.OpPut(key, "value")).
		Else(clientv3.OpGet(key)).
		Commit()
	if err != nil || !answer.Succeeded {
		t.Fatalf("writing: %v, %v", answer, err)
	}
	return answer.Header.Revision
}

func TestPasswordsAreNotShown(t *testing.T) {
	t.Parallel()
	const endpoint = "postgres://u:p%40ss/w0rd@db/rik"
	for _, text := range []string{"dialing p@ss/w0rd", `parse "postgres://u:p%40ss/w0rd@db"`, "p%40ss%2Fw0rd"} {
		if got := withoutPassword(errors.New(text), endpoint); strings.Contains(got.Error(), "w0rd") {
			t.Errorf("withoutPassword(%q) = %v", text, got)
		}
	}
	if got := withoutPassword(errors.New("no route to host"), endpoint); got.Error() != "no route to host" {
		t.Errorf("an error without the password became %v", got)
	}
	for endpoint, want := range map[string]string{
		"postgres://u:p@ss@db:5432/rik?sslmode=require": "postgres at db:5432/rik",
		"mysql://u:secret@tcp(db:3306)/rik?tls=true":    "mysql at tcp(db:3306)/rik",
		"sqlite:///var/lib/rik.db?_journal=WAL":         "sqlite at /var/lib/rik.db",
		"https://a:2379,https://b:2379":                 "etcd at https://a:2379,https://b:2379",
	} {
		c := Config{Endpoint: endpoint, Dir: "/d", CAFile: "ca"}
		if got := c.Describe(); got != want {
			t.Errorf("Describe() = %q, want %q", got, want)
		}
	}
}

// TestShared tests that only a datastore in the data directory, which is locked, belongs to one
// server alone.
func TestShared(t *testing.T) {
	t.Parallel()
	for endpoint, want := range map[string]bool{
		"": false, "sqlite://": false, "sqlite:///srv/rik.db": true,
		"https://a:2379,https://b:2379": true, "postgres://rik@db/rik": true, "mysql://rik@tcp(db)/rik": true,
	} {
		if got := (Config{Endpoint: endpoint}).Shared(); got != want {
			t.Errorf("another server can use the datastore %q: %v, want %v", endpoint, got, want)
		}
	}
}
