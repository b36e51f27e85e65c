// Package datastore provides the etcd API in which the API server stores its objects. The rest
// of rik uses only that API for storage. Behind it is an etcd in this process, an external etcd
// cluster, or a SQL database through kine.
//
// A datastore in this process listens only on unix sockets in a directory that no other user
// may enter. etcd does not authenticate here, and its usual TCP ports would make every local
// user an administrator.
package datastore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"rik.dev/rik/internal/apiserver/datastore/etcd"
	"rik.dev/rik/internal/apiserver/datastore/kine"
	"rik.dev/rik/internal/apiserver/datastore/terms"
)

// Config selects the datastore.
type Config struct {
	// Endpoint is empty for the embedded etcd. For an external etcd it is a comma-separated list of
	// https:// URLs, or http:// URLs on loopback. For a database it is a sqlite://, postgres:// or
	// mysql:// data source.
	Endpoint string
	// CAFile authenticates an external datastore. CertFile and KeyFile authenticate this process
	// to it. Optional.
	CAFile, CertFile, KeyFile string
	// Dir is the directory of an embedded datastore's files. Required for embedded datastores.
	Dir string
	// Quota is the maximum size of the embedded etcd's database in bytes. Zero means its default.
	Quota int64
	// Several allows other servers to join the embedded etcd. If it is nil, none can.
	Several *etcd.Several
	// Logger logs the datastore's own messages. Required.
	Logger *slog.Logger

	serveDamaged bool // see Repair
}

// Endpoint is the address of the datastore for an etcd client.
type Endpoint struct {
	// Servers are URLs. A datastore in this process has the scheme unix.
	Servers []string
	// CAFile, CertFile and KeyFile are empty for unix sockets.
	CAFile, CertFile, KeyFile string
}

// Datastore is an open datastore. Close stops the parts that run in this process.
type Datastore struct {
	endpoint Endpoint
	client   *clientv3.Client
	// files are the files of a SQLite database.
	files   []string
	close   func() error
	failed  <-chan error
	space   func() error
	cleanup func() error
	members *etcd.Server
}

// kind is the kind of datastore that the scheme of an endpoint selects.
type kind int

const (
	embeddedEtcd kind = iota
	externalEtcd
	sqlDatabase
)

// Validate reports every problem in the configuration without opening anything.
func (c Config) Validate() error {
	var problems []error
	k, err := c.kind()
	if err != nil {
		problems = append(problems, err)
	} else if k != externalEtcd && c.Dir == "" {
		problems = append(problems, errors.New("datastore directory is not set"))
	}
	if c.Quota != 0 && k != embeddedEtcd {
		problems = append(problems, errors.New("a quota applies only to the embedded etcd: limit another datastore in its own settings"))
	}
	if c.Logger == nil {
		problems = append(problems, errors.New("datastore logger is not set"))
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		problems = append(problems, errors.New("datastore certificate and key must be given together"))
	}
	return errors.Join(problems...)
}

// kind returns the kind of datastore. Its errors never contain the endpoint, which may contain
// a password.
func (c Config) kind() (kind, error) {
	if c.Endpoint == "" {
		return embeddedEtcd, nil
	}
	scheme, _, ok := strings.Cut(c.Endpoint, "://")
	if !ok {
		return 0, errors.New("datastore endpoint has no scheme: use https://, sqlite://, postgres:// or mysql://")
	}
	switch scheme {
	case "https", "http":
		return externalEtcd, c.checkURLs()
	case "sqlite", "postgres", "postgresql", "mysql":
		return sqlDatabase, c.checkSQL()
	default:
		return 0, fmt.Errorf("datastore scheme %q is not known: use https://, sqlite://, postgres:// or mysql://", scheme)
	}
}

// Shared reports whether another server may use the datastore at the same time. Only a
// datastore in the data directory, which is locked, belongs to this server alone.
func (c Config) Shared() bool {
	return c.Endpoint != "" && c.Endpoint != "sqlite://"
}

// Describe returns the kind and place of the datastore for messages to people, and never its
// credentials.
func (c Config) Describe() string {
	k, err := c.kind()
	switch {
	case err != nil:
		return "an unknown datastore"
	case k == embeddedEtcd:
		return "the embedded etcd in " + c.Dir
	case k == externalEtcd:
		return "etcd at " + c.Endpoint
	}
	scheme, rest, _ := strings.Cut(c.Endpoint, "://")
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		rest = rest[at+1:] // the part before is the user and the password
	}
	rest, _, _ = strings.Cut(rest, "?")
	if rest == "" {
		rest = c.Dir
	}
	return scheme + " at " + rest
}

// Client connects to the datastore as an etcd client. The caller closes it.
func (e Endpoint) Client(logger *zap.Logger) (*clientv3.Client, error) {
	config := clientv3.Config{Endpoints: e.Servers, DialTimeout: dialTimeout, Logger: logger}
	if e.CAFile != "" || e.CertFile != "" || strings.HasPrefix(e.Servers[0], "https://") {
		tls, err := transport.TLSInfo{TrustedCAFile: e.CAFile, CertFile: e.CertFile, KeyFile: e.KeyFile}.ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("reading the certificates for the datastore: %w", err)
		}
		config.TLS = tls
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the datastore: %w", err)
	}
	return client, nil
}

// dialTimeout bounds one attempt to connect. A client retries until its caller's context ends.
const dialTimeout = 20 * time.Second

// checkURLs refuses plain HTTP to another machine, because the cluster's secrets and all
// permissions would be sent unencrypted.
func (c Config) checkURLs() error {
	var problems []error
	for i, server := range c.servers() {
		u, err := url.Parse(server)
		switch {
		case err != nil || u.Host == "":
			problems = append(problems, fmt.Errorf("datastore endpoint %d is not a URL with a host", i+1))
		case u.Scheme != "https" && u.Scheme != "http":
			problems = append(problems, fmt.Errorf("datastore endpoint %d has the scheme %q: use https", i+1, u.Scheme))
		case u.Scheme == "http" && !isLoopback(u.Hostname()):
			problems = append(problems, fmt.Errorf("datastore endpoint %d is plain http to another machine: use https", i+1))
		case u.User != nil:
			problems = append(problems, fmt.Errorf("datastore endpoint %d contains a user name: etcd clients authenticate with a certificate", i+1))
		}
	}
	return errors.Join(problems...)
}

func (c Config) servers() []string { return strings.Split(c.Endpoint, ",") }

func isLoopback(host string) bool {
	return host == "localhost" || host == "::1" || strings.HasPrefix(host, "127.")
}

// Open starts the datastore in this process, or waits for an external one. It returns when the
// datastore accepts connections. ctx bounds only the opening.
func Open(ctx context.Context, cfg Config) (*Datastore, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	k, err := cfg.kind()
	if err != nil {
		return nil, err
	}
	if k == externalEtcd {
		e := Endpoint{Servers: cfg.servers(), CAFile: cfg.CAFile, CertFile: cfg.CertFile, KeyFile: cfg.KeyFile}
		if err := await(ctx, e, cfg.Logger); err != nil {
			return nil, err
		}
		terms.Guard(e.Servers)
		return (&Datastore{endpoint: e}).connect()
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating the datastore's directory: %w", err)
	}
	sockets, cleanup, err := socketDir(cfg.Dir)
	if err != nil {
		return nil, err
	}
	d := &Datastore{cleanup: cleanup}
	if k == embeddedEtcd {
		err = d.openEtcd(ctx, cfg, sockets)
	} else {
		err = d.openKine(ctx, cfg, sockets)
	}
	if err != nil {
		return nil, errors.Join(err, cleanup())
	}
	return d.connect()
}

// connect creates the client of the methods that need one. It does not wait for a connection.
func (d *Datastore) connect() (*Datastore, error) {
	client, err := d.endpoint.Client(zap.NewNop())
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	d.client = client
	return d, nil
}

func (d *Datastore) openEtcd(ctx context.Context, cfg Config, sockets string) error {
	server, err := etcd.Start(ctx, etcd.Config{Dir: cfg.Dir, SocketDir: sockets, Quota: cfg.Quota, Several: cfg.Several, Logger: cfg.Logger, ServeDamaged: cfg.serveDamaged})
	if err != nil {
		return err
	}
	terms.Guard([]string{server.Endpoint()})
	d.space, d.members = server.Space, server
	d.endpoint = Endpoint{Servers: []string{server.Endpoint()}}
	d.close, d.failed = server.Close, server.Err()
	return nil
}

func (d *Datastore) openKine(ctx context.Context, cfg Config, sockets string) error {
	server, err := kine.Start(ctx, kine.Config{
		Source: cfg.Endpoint, Dir: cfg.Dir, SocketDir: sockets,
		CAFile: cfg.CAFile, CertFile: cfg.CertFile, KeyFile: cfg.KeyFile, Logger: cfg.Logger, ServeDamaged: cfg.serveDamaged,
	})
	if err != nil {
		return withoutPassword(err, cfg.Endpoint)
	}
	d.endpoint = Endpoint{Servers: []string{server.Endpoint()}}
	d.close, d.files = server.Close, server.Files()
	return nil
}

// Endpoint returns the address of the datastore.
func (d *Datastore) Endpoint() Endpoint { return d.endpoint }

// Failed delivers an error if an embedded datastore ends by itself. It is nil, and so blocks
// forever, for a datastore that is not watched.
func (d *Datastore) Failed() <-chan error { return d.failed }

// Embedded returns the embedded etcd, whose members change as servers join and leave. It is nil for
// other datastores.
func (d *Datastore) Embedded() *etcd.Server { return d.members }

// Space returns an error while nothing can be stored because the quota is used up. It returns
// nil for a datastore without a quota here.
func (d *Datastore) Space() error {
	if d.space == nil {
		return nil
	}
	return d.space()
}

// Close stops the parts that Open started and removes their sockets. Call it once, after the
// last client has ended.
func (d *Datastore) Close() error {
	var problems []error
	if d.client != nil {
		problems = append(problems, d.client.Close())
	}
	if d.close != nil {
		problems = append(problems, d.close())
	}
	if d.cleanup != nil {
		problems = append(problems, d.cleanup())
	}
	return errors.Join(problems...)
}
