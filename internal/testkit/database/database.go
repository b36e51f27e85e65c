// Package database starts PostgreSQL and MariaDB for tests, on unix sockets and without an
// installation. Tests are skipped on a machine without the programs; make nightly fetches them
// from Debian.
package database

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"rik.dev/rik/internal/testkit/poll"
)

// Server is a database server of a test. It ends with the test.
type Server struct {
	// Source is the data source for kine. Its password is "hunter2", which the server ignores.
	Source string
	// Dir has the server's files and sockets.
	Dir string

	command func() *exec.Cmd
	log     string
	ready   string // the message of a server that accepts connections
	running *run
	// logBefore is the size of the log when the server was started.
	logBefore int64
}

// run is one process of a server.
type run struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

func (r *run) over() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// Start starts a server that was stopped, and waits until it accepts connections.
func (s *Server) Start(tb testing.TB) {
	tb.Helper()
	s.Launch(tb)
	poll.Until(tb, time.Minute, "the database listens", func(ctx context.Context) error {
		if s.running.over() {
			// The processes of a killed PostgreSQL end shortly after it, and then it can start again.
			s.Launch(tb)
		}
		text, err := os.ReadFile(s.log)
		if err == nil && !bytes.Contains(text[s.logBefore:], []byte(s.ready)) {
			err = fmt.Errorf("its log ends with: %s", text[max(0, len(text)-logTail):])
		}
		return err
	})
}

// Launch starts a server that was stopped, and does not wait for it.
func (s *Server) Launch(tb testing.TB) {
	tb.Helper()
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		tb.Fatal(err)
	}
	if s.logBefore, err = log.Seek(0, io.SeekEnd); err != nil {
		tb.Fatal(err)
	}
	r := &run{cmd: s.command(), ended: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = log, log
	// The server ends with the test process, also if that is killed.
	r.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	go func() {
		// Pdeathsig depends on the thread, which Go could otherwise end before the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := errors.Join(r.cmd.Start(), log.Close())
		started <- err
		if err == nil {
			_ = r.cmd.Wait()
			close(r.ended)
		}
	}()
	if err := <-started; err != nil {
		tb.Fatal(err)
	}
	s.running = r
}

// Kill ends the server with SIGKILL, and returns when the process has ended. It may be called
// again.
func (s *Server) Kill() { s.end(syscall.SIGKILL) }

// Stop ends the server in good order.
func (s *Server) Stop() { s.end(syscall.SIGINT) } // PostgreSQL: do not wait for clients

func (s *Server) end(signal syscall.Signal) {
	if s.running == nil {
		return
	}
	if signal == syscall.SIGINT && filepath.Base(s.running.cmd.Path) == "mariadbd" {
		signal = syscall.SIGTERM
	}
	_ = s.running.cmd.Process.Signal(signal) // fails if it has ended already
	<-s.running.ended
}

// logTail is the part of the log that a failed test shows, in bytes.
const logTail = 2000

// socketDir returns a directory for a database. Its path is short, because the path of a socket
// has at most 107 bytes.
func socketDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "rikdb")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// MariaDB starts a server if one is installed: mariadbd in PATH, or the program in
// RIK_MARIADBD.
func MariaDB(tb testing.TB) *Server {
	tb.Helper()
	return MariaDBIn(tb, "")
}

// MariaDBIn does the same with the server's data in a directory, which is empty. Without one,
// it is next to the socket.
func MariaDBIn(tb testing.TB, data string) *Server {
	tb.Helper()
	program := os.Getenv("RIK_MARIADBD")
	if program == "" {
		var err error
		if program, err = exec.LookPath("mariadbd"); err != nil {
			tb.Skip("there is no mariadbd: install mariadb-server-core, or set RIK_MARIADBD; make nightly does that")
		}
	}
	dir := socketDir(tb)
	socket := filepath.Join(dir, "s.sock")
	data = dataDir(tb, dir, data)
	arguments := []string{"--no-defaults", "--datadir=" + data, "--socket=" + socket, "--skip-networking", "--skip-grant-tables", "--innodb-buffer-pool-size=16M", "--user=root",
		// Without a synchronized binary log, a commit is visible before it is durable.
		"--log-bin=binlog", "--sync-binlog=1"}
	if base := os.Getenv("RIK_MARIADB_SHARE"); base != "" {
		arguments = append(arguments, "--lc-messages-dir="+base)
	}
	s := &Server{Source: "mysql://root:hunter2@unix(" + socket + ")/rik", Dir: dir, log: filepath.Join(dir, "log"), ready: "ready for connections", command: func() *exec.Cmd {
		return command(dir, program, arguments...)
	}}
	s.begin(tb)
	return s
}

func dataDir(tb testing.TB, dir, data string) string {
	tb.Helper()
	if data != "" {
		return data
	}
	data = filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		tb.Fatal(err)
	}
	return data
}

func (s *Server) begin(tb testing.TB) {
	tb.Helper()
	tb.Cleanup(s.Kill)
	s.Start(tb)
}

// command returns a command in its own process group.
func command(dir, program string, arguments ...string) *exec.Cmd {
	cmd := exec.Command(program, arguments...) //nolint:noctx // ended by signal
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// PostgreSQL starts a server if one is installed: in the directory RIK_POSTGRES_BIN, in PATH, or
// in Debian's directory.
func PostgreSQL(tb testing.TB) *Server {
	tb.Helper()
	return PostgreSQLIn(tb, "")
}

// PostgreSQLIn does the same with the server's data in a directory, which is empty. Without one,
// it is next to the socket.
func PostgreSQLIn(tb testing.TB, data string) *Server {
	tb.Helper()
	programs := os.Getenv("RIK_POSTGRES_BIN")
	if found, err := filepath.Glob("/usr/lib/postgresql/*/bin"); programs == "" && err == nil && len(found) > 0 {
		programs = found[len(found)-1]
	}
	if path, err := exec.LookPath("initdb"); programs == "" && err == nil {
		programs = filepath.Dir(path)
	}
	if programs == "" {
		tb.Skip("there is no PostgreSQL: install postgresql, or set RIK_POSTGRES_BIN; make nightly does that")
	}
	dir := socketDir(tb)
	data = dataDir(tb, dir, data)
	start := func(program string, arguments ...string) *exec.Cmd {
		cmd := command(dir, filepath.Join(programs, program), arguments...)
		if os.Geteuid() == 0 {
			// PostgreSQL refuses to run as root. In this user namespace it has another user ID.
			one := []syscall.SysProcIDMap{{ContainerID: 1000, HostID: 0, Size: 1}}
			cmd.SysProcAttr.Cloneflags, cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = syscall.CLONE_NEWUSER, one, one
		}
		return cmd
	}
	out, err := start("initdb", "--auth=trust", "--username=rik", "--no-sync", "-D", data).CombinedOutput()
	if errors.Is(err, syscall.EPERM) && os.Geteuid() == 0 {
		tb.Skip("PostgreSQL does not run as root, and this machine gives no user namespace")
	}
	if err != nil {
		tb.Fatalf("initdb: %v: %s", err, out)
	}
	s := &Server{
		Source: "postgres://rik:hunter2@/rik?host=" + dir, Dir: dir, log: filepath.Join(dir, "log"), ready: "ready to accept connections",
		command: func() *exec.Cmd {
			return start("postgres", "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "shared_buffers=16MB")
		},
	}
	s.begin(tb)
	return s
}
