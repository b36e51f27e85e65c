// Package datastoretest is the conformance suite of datastores. It has each kind of datastore
// with its real server: etcd in the process, etcd clusters of one and three members with TLS,
// SQLite, PostgreSQL and MariaDB. [Run] tests what the API server relies on. [Load] writes
// while a test kills processes, and then checks that nothing was lost.
package datastoretest

import (
	"context"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"rik.dev/rik/internal/apiserver/datastore"
	"rik.dev/rik/internal/pki"
	"rik.dev/rik/internal/testkit/database"
	"rik.dev/rik/internal/testkit/process"
)

// Kind is one kind of datastore.
type Kind struct {
	Name string
	// New prepares a datastore for one test, and starts its servers. The test is skipped if they
	// are not installed.
	New func(tb testing.TB) *Backing
	// SQL is whether kine serves it.
	SQL bool
	// In is New with all files of the datastore in a directory, which is empty. It is nil for
	// etcd clusters, whose members store as the embedded etcd does.
	In func(tb testing.TB, dir string) *Backing
}

// Kinds are all kinds of datastores.
func Kinds() []Kind {
	return []Kind{
		{Name: "embedded-etcd", New: func(tb testing.TB) *Backing { return embedded(tb, "", tb.TempDir()) }, In: func(tb testing.TB, dir string) *Backing { return embedded(tb, "", dir) }},
		{Name: "etcd-1", New: func(tb testing.TB) *Backing { return EtcdCluster(tb, 1) }},
		{Name: "etcd-3", New: func(tb testing.TB) *Backing { return EtcdCluster(tb, 3) }},
		{
			Name: "SQLite", SQL: true, New: func(tb testing.TB) *Backing { return embedded(tb, "sqlite://", tb.TempDir()) },
			In: func(tb testing.TB, dir string) *Backing { return embedded(tb, "sqlite://", dir) },
		},
		{
			Name: "PostgreSQL", SQL: true, New: func(tb testing.TB) *Backing { return sqlServer(tb, database.PostgreSQL(tb)) },
			In: func(tb testing.TB, dir string) *Backing { return sqlServer(tb, database.PostgreSQLIn(tb, dir)) },
		},
		{
			Name: "MariaDB", SQL: true, New: func(tb testing.TB) *Backing { return sqlServer(tb, database.MariaDB(tb)) },
			In: func(tb testing.TB, dir string) *Backing { return sqlServer(tb, database.MariaDBIn(tb, dir)) },
		},
	}
}

// Server is a process of a datastore other than the API server's.
type Server interface {
	// Kill ends the process with SIGKILL, if it runs.
	Kill()
	// Start starts the process after it has ended.
	Start(tb testing.TB)
}

// Backing is what an open datastore stores in.
type Backing struct {
	// Config opens the datastore.
	Config datastore.Config
	// Servers are the external processes, if there are any. All but a minority must run.
	Servers []Server
}

func embedded(tb testing.TB, endpoint, dir string) *Backing {
	tb.Helper()
	return &Backing{Config: datastore.Config{Endpoint: endpoint, Dir: dir, Logger: Logger(tb)}}
}

func sqlServer(tb testing.TB, s *database.Server) *Backing {
	tb.Helper()
	return &Backing{
		Config:  datastore.Config{Endpoint: s.Source, Dir: tb.TempDir(), Logger: Logger(tb)},
		Servers: []Server{s},
	}
}

// Logger logs warnings to the test.
func Logger(tb testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// openTimeout bounds the opening of a datastore.
const openTimeout = 2 * time.Minute

// Open opens the datastore in this process until the test ends.
func (b *Backing) Open(tb testing.TB) *datastore.Datastore {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), openTimeout)
	defer cancel()
	store, err := datastore.Open(ctx, b.Config)
	if err != nil {
		tb.Fatalf("opening the datastore: %v", err)
	}
	tb.Cleanup(func() {
		if err := store.Close(); err != nil {
			tb.Errorf("closing the datastore: %v", err)
		}
	})
	return store
}

// Connect returns a client like that of the API server, until the test ends.
func Connect(tb testing.TB, e datastore.Endpoint) *kubernetes.Client {
	tb.Helper()
	client, err := e.Client(zap.NewNop())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = client.Close() })
	c := &kubernetes.Client{Client: client}
	c.Kubernetes = c
	return c
}

// Variables of the processes that Main runs instead of tests.
const (
	EnvMember = "RIK_DATASTORETEST_MEMBER"
	envHost   = "RIK_DATASTORETEST_HOST"
)

// Main is the TestMain of a package that uses etcd clusters or hosts. Such a process is the test
// program again.
func Main(m *testing.M) {
	var err error
	switch {
	case os.Getenv(EnvMember) != "":
		err = runMember(os.Getenv(EnvMember))
	case os.Getenv(envHost) != "":
		err = runHost(os.Getenv(envHost))
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// program is a process that Main runs.
type program struct {
	env, log string
	process  *process.Process
}

func (p *program) Kill() { p.process.Kill() }

// Start starts the process, and does not wait until it answers.
func (p *program) Start(tb testing.TB) {
	tb.Helper()
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	if p.process, err = process.StartWith([]string{p.env}, self, p.log); err != nil {
		tb.Fatal(err)
	}
}

// EtcdCluster starts an etcd cluster on loopback, with TLS for clients and between members.
func EtcdCluster(tb testing.TB, size int) *Backing {
	tb.Helper()
	dir := tb.TempDir()
	files := certificates(tb, dir)
	var members []*embed.Config
	var initial, endpoints []string
	for i := range size {
		c := embed.NewConfig()
		c.Name = fmt.Sprintf("m%d", i)
		c.Dir = filepath.Join(dir, c.Name)
		client, peer := loopbackURL(tb), loopbackURL(tb)
		c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
		c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
		initial = append(initial, c.Name+"="+peer.String())
		endpoints = append(endpoints, client.String())
		members = append(members, c)
	}
	b := &Backing{Config: datastore.Config{
		Endpoint: strings.Join(endpoints, ","), CAFile: files.ca, CertFile: files.clientCert, KeyFile: files.clientKey, Logger: Logger(tb),
	}}
	for _, c := range members {
		config := fmt.Sprintf(`{"name":%q,"data-dir":%q,"listen-client-urls":%q,"advertise-client-urls":%q,"listen-peer-urls":%q,"initial-advertise-peer-urls":%q,`+
			`"initial-cluster":%q,"initial-cluster-state":"new","log-level":"warn","strict-reconfig-check":true,`+
			`"client-transport-security":%s,"peer-transport-security":%s}`,
			c.Name, c.Dir, c.ListenClientUrls[0].String(), c.ListenClientUrls[0].String(), c.ListenPeerUrls[0].String(), c.ListenPeerUrls[0].String(),
			strings.Join(initial, ","), files.serverJSON(), files.serverJSON())
		path := filepath.Join(dir, c.Name+".json")
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			tb.Fatal(err)
		}
		p := &program{env: EnvMember + "=" + path, log: filepath.Join(dir, c.Name+".log")}
		p.Start(tb)
		tb.Cleanup(func() {
			p.Kill()
			if tb.Failed() {
				tb.Logf("%s ended its log with:\n%s", c.Name, p.process.Tail())
			}
		})
		b.Servers = append(b.Servers, p)
	}
	return b
}

func loopbackURL(tb testing.TB) url.URL {
	tb.Helper()
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer listener.Close()
	return url.URL{Scheme: "https", Host: listener.Addr().String()}
}

// tlsFiles are the certificates of a cluster.
type tlsFiles struct{ ca, serverCert, serverKey, clientCert, clientKey string }

func (f tlsFiles) serverJSON() string {
	return fmt.Sprintf(`{"trusted-ca-file":%q,"client-cert-auth":true,"cert-file":%q,"key-file":%q,"client-cert-file":%q,"client-key-file":%q}`,
		f.ca, f.serverCert, f.serverKey, f.clientCert, f.clientKey)
}

func certificates(tb testing.TB, dir string) tlsFiles {
	tb.Helper()
	authority, err := pki.LoadOrCreate(filepath.Join(dir, "pki"))
	if err != nil {
		tb.Fatal(err)
	}
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			tb.Fatal(err)
		}
		return path
	}
	serverCert, serverKey, err := authority.IssueServer([]string{"127.0.0.1"}, time.Hour*24)
	if err != nil {
		tb.Fatal(err)
	}
	clientCert, clientKey, err := authority.IssueClient(pkix.Name{CommonName: "rik"}, time.Hour*24)
	if err != nil {
		tb.Fatal(err)
	}
	return tlsFiles{
		ca: write("ca.crt", authority.CertificatePEM()), serverCert: write("server.crt", serverCert), serverKey: write("server.key", serverKey),
		clientCert: write("client.crt", clientCert), clientKey: write("client.key", clientKey),
	}
}

func runMember(path string) error {
	config, err := embed.ConfigFromFile(path)
	if err != nil {
		return err
	}
	e, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	return <-e.Err()
}

// hostConfig is a datastore.Config without the parts that cannot be sent.
type hostConfig struct {
	Endpoint, Dir, CAFile, CertFile, KeyFile string
	Quota                                    int64
}

// Host is a process of its own in which a datastore is open. It stands for a rik server.
type Host struct {
	program
	backing *Backing
}

// Host opens the datastore in a process of its own, which ends with the test.
func (b *Backing) Host(tb testing.TB) *Host {
	tb.Helper()
	c := b.Config
	raw, err := json.Marshal(hostConfig{c.Endpoint, c.Dir, c.CAFile, c.CertFile, c.KeyFile, c.Quota})
	if err != nil {
		tb.Fatal(err)
	}
	h := &Host{program{env: envHost + "=" + string(raw), log: filepath.Join(tb.TempDir(), "host.log")}, b}
	h.Start(tb)
	tb.Cleanup(func() {
		h.Kill()
		if tb.Failed() {
			tb.Logf("the host ended its log with:\n%s", h.process.Tail())
		}
	})
	return h
}

// Start starts the process again, and waits until the datastore is open.
func (h *Host) Start(tb testing.TB) {
	tb.Helper()
	if err := os.Remove(h.log); err != nil && !errors.Is(err, os.ErrNotExist) {
		tb.Fatal(err)
	}
	h.program.Start(tb)
	if _, err := h.process.AwaitLine(hostReady, openTimeout); err != nil {
		tb.Fatal(err)
	}
}

// Launch starts the process again, and does not wait.
func (h *Host) Launch(tb testing.TB) {
	tb.Helper()
	h.program.Start(tb)
}

// Stop ends the process in good order.
func (h *Host) Stop(tb testing.TB) {
	tb.Helper()
	if err := h.process.Stop(); err != nil {
		tb.Error(err)
	}
}

// Done is closed when the process has ended.
func (h *Host) Done() <-chan struct{} { return h.process.Done() }

// Log returns the output of the process.
func (h *Host) Log() string { return h.process.Log() }

// Endpoint returns the address of the open datastore, which stays the same after a restart.
func (h *Host) Endpoint(tb testing.TB) datastore.Endpoint {
	tb.Helper()
	line, err := h.process.AwaitLine(hostReady, openTimeout)
	if err != nil {
		tb.Fatal(err)
	}
	var e datastore.Endpoint
	_, text, _ := strings.Cut(line, hostReady)
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		tb.Fatal(err)
	}
	return e
}

const hostReady = "the datastore is open: "

func runHost(text string) error {
	var c hostConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	opening, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	store, err := datastore.Open(opening, datastore.Config{
		Endpoint: c.Endpoint, Dir: c.Dir, CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile, Quota: c.Quota,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	ready, err := json.Marshal(store.Endpoint())
	if err != nil {
		return errors.Join(err, store.Close())
	}
	if _, err := io.WriteString(os.Stdout, hostReady+string(ready)+"\n"); err != nil {
		return errors.Join(err, store.Close())
	}
	select {
	case <-ctx.Done():
	case err = <-store.Failed():
	}
	return errors.Join(err, store.Close())
}
