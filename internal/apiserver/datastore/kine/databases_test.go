package kine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"rik.dev/rik/internal/testkit/database"
	"rik.dev/rik/internal/testkit/output"
	"rik.dev/rik/internal/testkit/poll"
)

// use opens a datastore, calls check with a client, and closes the datastore.
func use(t *testing.T, cfg Config, check func(*clientv3.Client)) {
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

func put(ctx context.Context, client *clientv3.Client, key, value string) error {
	answer, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).Then(clientv3.OpPut(key, value)).Commit()
	if err == nil && !answer.Succeeded {
		err = errors.New("it is there already")
	}
	if err != nil {
		return fmt.Errorf("creating %s: %w", key, err)
	}
	return nil
}

func get(ctx context.Context, client *clientv3.Client, key, want string) error {
	answer, err := client.Get(ctx, key)
	if err == nil && (len(answer.Kvs) != 1 || string(answer.Kvs[0].Key) != key || string(answer.Kvs[0].Value) != want) {
		err = fmt.Errorf("it is %v", answer.Kvs)
	}
	if err != nil {
		return fmt.Errorf("getting %s: %w", key, err)
	}
	return nil
}

var cases = []string{"/registry/roles/foo", "/registry/roles/Foo", "/registry/roles/FOO", "/registry/roles/fo", "/registry/roles/foo_", "/registry/roles/foo%"}

// reportCasesApart checks that names that differ only in case are different objects, and so are
// names with special characters of SQL patterns.
func reportCasesApart(t *testing.T, cfg Config) {
	t.Helper()
	use(t, cfg, func(client *clientv3.Client) {
		for _, key := range cases {
			if err := put(t.Context(), client, key, key); err != nil {
				t.Error(err)
			}
		}
		for _, key := range cases {
			if err := get(t.Context(), client, key, key); err != nil {
				t.Error(err)
			}
		}
		for prefix, want := range map[string]int{"/registry/roles/": len(cases), "/registry/roles/F": 2, "/registry/roles/foo": 3, "/registry/roles/foo_": 1} {
			answer, err := client.Get(t.Context(), prefix, clientv3.WithPrefix())
			if err != nil || len(answer.Kvs) != want {
				t.Errorf("%s has %v, %v; want %d keys", prefix, answer, err, want)
			}
		}
		if _, err := client.Txn(t.Context()).If(clientv3.Compare(clientv3.ModRevision(cases[0]), "=", revision(t, client, cases[0]))).
			Then(clientv3.OpDelete(cases[0])).Else(clientv3.OpGet(cases[0])).Commit(); err != nil {
			t.Error(err)
		}
		if err := get(t.Context(), client, cases[1], cases[1]); err != nil {
			t.Errorf("after the deletion of %s: %v", cases[0], err)
		}
	})
}

func revision(t *testing.T, client *clientv3.Client, key string) int64 {
	t.Helper()
	answer, err := client.Get(t.Context(), key)
	if err != nil || len(answer.Kvs) != 1 {
		t.Fatalf("getting %s: %v, %v", key, answer, err)
	}
	return answer.Kvs[0].ModRevision
}

func TestPostgreSQLDistinguishesCase(t *testing.T) {
	t.Parallel()
	reportCasesApart(t, Config{Source: database.PostgreSQL(t).Source, Logger: slog.New(slog.DiscardHandler)})
}

// TestMariaDBDistinguishesCase: names that differ only in case are different objects, also in a
// table that an earlier version created.
func TestMariaDBDistinguishesCase(t *testing.T) {
	t.Parallel()
	cfg := Config{Source: database.MariaDB(t).Source, Logger: slog.New(slog.DiscardHandler)}
	reportCasesApart(t, cfg)
	// A table as kine creates it.
	db, err := openMySQL(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, statement := range []string{
		"DELETE FROM kine WHERE name LIKE '/registry/roles/%'",
		"ALTER TABLE kine MODIFY COLUMN name VARCHAR(630) CHARACTER SET ascii",
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(fmt.Errorf("%s: %w", statement, err))
		}
	}
	reportCasesApart(t, cfg)
}

// TestADatabaseThatStartsLater: Start waits for a server that is unreachable for longer than
// one attempt of kine. Its database is created then.
func TestADatabaseThatStartsLater(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(testing.TB) *database.Server{"PostgreSQL": database.PostgreSQL, "MariaDB": database.MariaDB} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := open(t)
			d.Kill()
			var log output.Buffer
			cfg := Config{Source: d.Source, SocketDir: t.TempDir(), Logger: slog.New(slog.NewTextHandler(&log, nil)), attempt: 3 * time.Second}
			started := make(chan error, 1)
			go func() {
				s, err := Start(t.Context(), cfg)
				if err == nil {
					err = s.Close()
				}
				started <- err
			}()
			time.Sleep(2 * cfg.attempt) // longer than one attempt
			d.Start(t)
			if err := <-started; err != nil {
				t.Errorf("Start = %v\n%s", err, log.String())
			}
			if strings.Contains(log.String(), "hunter2") {
				t.Errorf("the password is in the log:\n%s", log.String())
			}
		})
	}
}

// TestADatabaseThatEnds: requests fail while the database is down, and work again when it is
// back. Neither errors nor the log contain the password or a value.
func TestADatabaseThatEnds(t *testing.T) { //nolint:paralleltest // logrus has one logger
	for name, open := range map[string]func(testing.TB) *database.Server{"PostgreSQL": database.PostgreSQL, "MariaDB": database.MariaDB} {
		t.Run(name, func(t *testing.T) {
			d := open(t)
			var log output.Buffer
			said := []string{}
			cfg := Config{Source: d.Source, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
			const key, value = "/registry/configmaps/team/settings", "correct horse battery staple"
			use(t, cfg, func(client *clientv3.Client) {
				if err := put(t.Context(), client, key, value); err != nil {
					t.Fatal(err)
				}
				d.Kill()
				for name, try := range map[string]func(ctx context.Context) error{
					"read":  func(ctx context.Context) error { return get(ctx, client, key, value) },
					"write": func(ctx context.Context) error { return put(ctx, client, key+"2", value) },
				} {
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					err := try(ctx)
					cancel()
					if err == nil {
						t.Errorf("a %s succeeds without a database", name)
						continue
					}
					said = append(said, err.Error())
				}
				d.Start(t)
				poll.Until(t, time.Minute, "the value can be read again", func(ctx context.Context) error { return get(ctx, client, key, value) })
				poll.Until(t, time.Minute, "a value can be written again", func(ctx context.Context) error {
					return put(ctx, client, fmt.Sprintf("%s-%d", key, time.Now().UnixNano()), value)
				})
			})
			said = append(said, log.String())
			for _, text := range said {
				if strings.Contains(text, "hunter2") || strings.Contains(text, "horse") {
					t.Errorf("the password or the value is in %q", text)
				}
			}
			if !strings.Contains(log.String(), key) {
				t.Errorf("the log does not name the key:\n%s", log.String())
			}
		})
	}
}
