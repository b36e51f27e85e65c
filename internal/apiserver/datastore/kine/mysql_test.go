package kine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"rik.dev/rik/internal/testkit/poll"
)

// mariaDB runs a server on a unix socket, where there is one: mariadbd of PATH, or the program
// in RIK_MARIADBD. It returns the data source.
func mariaDB(t *testing.T) string {
	t.Helper()
	program := os.Getenv("RIK_MARIADBD")
	if program == "" {
		var err error
		if program, err = exec.LookPath("mariadbd"); err != nil {
			t.Skip("there is no mariadbd: install mariadb-server-core, or set RIK_MARIADBD")
		}
	}
	// A short path: a socket's has 107 bytes at most.
	dir, err := os.MkdirTemp("", "rikmaria")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	data, socket := filepath.Join(dir, "data"), filepath.Join(dir, "s.sock")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	arguments := []string{"--no-defaults", "--datadir=" + data, "--socket=" + socket, "--skip-networking", "--skip-grant-tables", "--innodb-buffer-pool-size=16M", "--user=root"}
	if base := os.Getenv("RIK_MARIADB_SHARE"); base != "" {
		arguments = append(arguments, "--lc-messages-dir="+base)
	}
	server := exec.Command(program, arguments...)
	server.Dir = dir
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	poll.Until(t, time.Minute, "MariaDB listens", func(context.Context) error {
		_, err := os.Stat(socket)
		return err
	})
	return "mysql://root@unix(" + socket + ")/rik"
}

// Names that differ in case only are different objects, also in a table of before.
func TestMariaDBTellsCasesApart(t *testing.T) {
	t.Parallel()
	source := mariaDB(t)
	cfg := Config{Source: source, Logger: slog.New(slog.DiscardHandler)}
	use := func(check func(*clientv3.Client)) {
		t.Helper()
		cfg.SocketDir = t.TempDir()
		s, err := Start(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(errors.Join(err, s.Close()))
		}
		check(client)
		if err := errors.Join(client.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	}
	put := func(client *clientv3.Client, key string) {
		t.Helper()
		answer, err := client.Txn(t.Context()).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).Then(clientv3.OpPut(key, key)).Commit()
		if err != nil || !answer.Succeeded {
			t.Errorf("creating %s: %v, %v", key, answer, err)
		}
	}
	get := func(client *clientv3.Client, key string) {
		t.Helper()
		answer, err := client.Get(t.Context(), key)
		if err != nil || len(answer.Kvs) != 1 || string(answer.Kvs[0].Value) != key {
			t.Errorf("getting %s: %v, %v", key, answer, err)
		}
	}
	use(func(client *clientv3.Client) {
		for _, key := range []string{"/registry/roles/foo", "/registry/roles/Foo", "/registry/roles/FOO"} {
			put(client, key)
		}
		for _, key := range []string{"/registry/roles/foo", "/registry/roles/Foo", "/registry/roles/FOO"} {
			get(client, key)
		}
	})
	// A table as kine makes it.
	db, err := openMySQL(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // of a test
	for _, statement := range []string{
		"DELETE FROM kine WHERE name <> BINARY LOWER(name)",
		"ALTER TABLE kine MODIFY COLUMN name VARCHAR(630) CHARACTER SET ascii",
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(fmt.Errorf("%s: %w", statement, err))
		}
	}
	use(func(client *clientv3.Client) {
		get(client, "/registry/roles/foo")
		put(client, "/registry/roles/Foo")
		get(client, "/registry/roles/foo")
		get(client, "/registry/roles/Foo")
	})
}
