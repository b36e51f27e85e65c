package kine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"rik.dev/rik/internal/testkit/output"
	"rik.dev/rik/internal/testkit/poll"
)

// database is a test's database server on a unix socket.
type database struct {
	source  string
	command func() *exec.Cmd
	socket  string
	stop    func()
}

// start starts the server, or starts it again.
func (d *database) start(t *testing.T) {
	t.Helper()
	server := d.command()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	d.stop = func() {
		if !ended {
			ended = true
			_ = server.Process.Kill()
			_ = server.Wait()
		}
	}
	t.Cleanup(d.stop)
	poll.Until(t, time.Minute, filepath.Base(server.Path)+" listens", func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", d.socket)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// socketDir returns a directory for a database. Its path is short, because the path of a socket
// has at most 107 bytes.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "rikdb")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// mariaDB returns a server if one is installed: mariadbd in PATH, or the program in
// RIK_MARIADBD.
func mariaDB(t *testing.T) *database {
	t.Helper()
	program := os.Getenv("RIK_MARIADBD")
	if program == "" {
		var err error
		if program, err = exec.LookPath("mariadbd"); err != nil {
			t.Skip("there is no mariadbd: install mariadb-server-core, or set RIK_MARIADBD; make nightly does that")
		}
	}
	dir := socketDir(t)
	data, socket := filepath.Join(dir, "data"), filepath.Join(dir, "s.sock")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	arguments := []string{"--no-defaults", "--datadir=" + data, "--socket=" + socket, "--skip-networking", "--skip-grant-tables", "--innodb-buffer-pool-size=16M", "--user=root"}
	if base := os.Getenv("RIK_MARIADB_SHARE"); base != "" {
		arguments = append(arguments, "--lc-messages-dir="+base)
	}
	d := &database{source: "mysql://root:hunter2@unix(" + socket + ")/rik", socket: socket, command: func() *exec.Cmd {
		cmd := exec.Command(program, arguments...) //nolint:noctx // the test's own; it is ended by signal
		cmd.Dir = dir
		return cmd
	}}
	d.start(t)
	return d
}

// postgres returns a server if one is installed: in the directory RIK_POSTGRES_BIN, in PATH, or
// in Debian's directory.
func postgres(t *testing.T) *database {
	t.Helper()
	programs := os.Getenv("RIK_POSTGRES_BIN")
	if found, err := filepath.Glob("/usr/lib/postgresql/*/bin"); programs == "" && err == nil && len(found) > 0 {
		programs = found[len(found)-1]
	}
	if path, err := exec.LookPath("initdb"); programs == "" && err == nil {
		programs = filepath.Dir(path)
	}
	if programs == "" {
		t.Skip("there is no PostgreSQL: install postgresql, or set RIK_POSTGRES_BIN; make nightly does that")
	}
	dir := socketDir(t)
	data := filepath.Join(dir, "data")
	command := func(program string, arguments ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(programs, program), arguments...) //nolint:noctx // the test's own
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "LC_ALL=C")
		if os.Geteuid() == 0 {
			// PostgreSQL refuses to run as root. In this user namespace it has another user ID.
			one := []syscall.SysProcIDMap{{ContainerID: 1000, HostID: 0, Size: 1}}
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: one, GidMappings: one}
		}
		return cmd
	}
	out, err := command("initdb", "--auth=trust", "--username=rik", "--no-sync", "-D", data).CombinedOutput()
	if errors.Is(err, syscall.EPERM) && os.Geteuid() == 0 {
		t.Skip("PostgreSQL does not run as root, and this machine gives no user namespace")
	}
	if err != nil {
		t.Fatalf("initdb: %v: %s", err, out)
	}
	d := &database{
		source: "postgres://rik:hunter2@/rik?host=" + dir, socket: filepath.Join(dir, ".s.PGSQL.5432"),
		command: func() *exec.Cmd {
			return command("postgres", "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=16MB")
		},
	}
	d.start(t)
	return d
}

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
	reportCasesApart(t, Config{Source: postgres(t).source, Logger: slog.New(slog.DiscardHandler)})
}

// TestMariaDBDistinguishesCase: names that differ only in case are different objects, also in a
// table that an earlier version created.
func TestMariaDBDistinguishesCase(t *testing.T) {
	t.Parallel()
	cfg := Config{Source: mariaDB(t).source, Logger: slog.New(slog.DiscardHandler)}
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
	for name, open := range map[string]func(*testing.T) *database{"PostgreSQL": postgres, "MariaDB": mariaDB} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := open(t)
			d.stop()
			var log output.Buffer
			cfg := Config{Source: d.source, SocketDir: t.TempDir(), Logger: slog.New(slog.NewTextHandler(&log, nil)), attempt: 3 * time.Second}
			started := make(chan error, 1)
			go func() {
				s, err := Start(t.Context(), cfg)
				if err == nil {
					err = s.Close()
				}
				started <- err
			}()
			time.Sleep(2 * cfg.attempt) // longer than one attempt
			d.start(t)
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
	for name, open := range map[string]func(*testing.T) *database{"PostgreSQL": postgres, "MariaDB": mariaDB} {
		t.Run(name, func(t *testing.T) {
			d := open(t)
			var log output.Buffer
			said := []string{}
			cfg := Config{Source: d.source, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
			const key, value = "/registry/configmaps/team/settings", "correct horse battery staple"
			use(t, cfg, func(client *clientv3.Client) {
				if err := put(t.Context(), client, key, value); err != nil {
					t.Fatal(err)
				}
				d.stop()
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
				d.start(t)
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
