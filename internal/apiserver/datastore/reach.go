package datastore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"

	"rik.dev/rik/internal/pause"
)

const (
	// reachTimeout bounds one attempt to connect to one server.
	reachTimeout = 5 * time.Second
	// refusalTimeout is how long a server may take to refuse a client's certificate, which
	// happens after the handshake.
	refusalTimeout = 500 * time.Millisecond
	// reachPause is the pause between two rounds of attempts.
	reachPause = time.Second
	// reachLogged is the interval of log messages while waiting.
	reachLogged = 10 * time.Second
)

// ErrCertificates is returned by Open when the certificates do not match those of the
// datastore.
var ErrCertificates = errors.New("the certificates of the datastore and of this server do not match")

// await waits until a server of an external etcd accepts connections. Servers may start later
// than this process. Mismatched certificates are an error at once, because waiting does not
// solve that. etcd's own client reports neither.
func await(ctx context.Context, e Endpoint, logger *slog.Logger) error {
	var logged time.Time
	var last error
	for {
		var problems []error
		fatal := false
		for _, server := range e.Servers {
			err := reach(ctx, e, server)
			if err == nil {
				return nil
			}
			fatal = fatal || errors.Is(err, ErrCertificates)
			problems = append(problems, fmt.Errorf("%s: %w", server, err))
		}
		err := errors.Join(problems...)
		if fatal {
			return err
		}
		// A round that the deadline has cut off says less than the one before it.
		if last == nil || !isOver(ctx) {
			last = err
		}
		if time.Since(logged) >= reachLogged {
			logged = time.Now()
			logger.Warn("waiting for the datastore", "err", err)
		}
		if !pause.For(ctx, reachPause) {
			return fmt.Errorf("%w: %w", context.Cause(ctx), last)
		}
	}
}

// isOver reports whether ctx has ended or its deadline has passed. A connection ends at the
// deadline, and ctx slightly later.
func isOver(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

func reach(ctx context.Context, e Endpoint, server string) error {
	u, err := url.Parse(server)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, reachTimeout, fmt.Errorf("no answer in %s", reachTimeout))
	defer cancel()
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), "2379")
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if u.Scheme != "https" {
		return nil
	}
	config, err := transport.TLSInfo{TrustedCAFile: e.CAFile, CertFile: e.CertFile, KeyFile: e.KeyFile}.ClientConfig()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCertificates, err)
	}
	config.ServerName, config.NextProtos = u.Hostname(), []string{"h2"}
	client := tls.Client(conn, config)
	if err := client.HandshakeContext(ctx); err != nil {
		return explainTLS(err)
	}
	// A server that refuses the certificate reports that after the handshake. A server that
	// accepts it waits for a request.
	if err := client.SetReadDeadline(time.Now().Add(refusalTimeout)); err != nil {
		return err
	}
	if _, err := client.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return explainTLS(err)
	}
	return nil
}

// explainTLS marks the errors that waiting does not solve.
func explainTLS(err error) error {
	var verification *tls.CertificateVerificationError
	var alert tls.AlertError
	var remote *net.OpError
	switch {
	case errors.As(err, &verification):
		return fmt.Errorf("%w: %w: set --datastore-cafile to the certificate authority of the datastore, and use an address that its certificate contains", ErrCertificates, err)
	case errors.As(err, &alert), errors.As(err, &remote) && remote.Op == "remote error":
		return fmt.Errorf("%w: the datastore refused this server's certificate: %w: set --datastore-certfile and --datastore-keyfile to a certificate of its authority", ErrCertificates, err)
	}
	return err
}
