// Package metrics serves the metrics of a program without an API, and registers metrics for as long
// as a component runs.
//
// [Server] serves the metrics of the process. [Scope] registers metrics.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/component-base/metrics/legacyregistry"
)

const (
	// Flag is the name of the flag for the address. Messages contain it.
	Flag = "metrics-address"
	// Path is the path of the metrics.
	Path = "/metrics"
	// timeout limits a slow or hanging client.
	timeout = 10 * time.Second
)

// Server serves the metrics of a command without an API. It has no authentication, so its address
// must be a loopback address.
type Server struct {
	// Address is an IP address and a port. If it is empty, no metrics are served.
	Address string
}

// Validate returns an error for an address that other machines could reach.
func (s Server) Validate() error {
	if s.Address == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(s.Address)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsLoopback() {
		return nil
	}
	problem := "other machines can reach it, and metrics need no authentication"
	if err != nil {
		problem = "it is not an address and a port"
	}
	return fmt.Errorf("--%s %q: %s: use a loopback address, such as 127.0.0.1:9090", Flag, s.Address, problem)
}

// RunWith calls run, and serves metrics meanwhile if there is an address. If the port cannot be
// opened, it returns an error before it calls run.
func (s Server) RunWith(ctx context.Context, log *slog.Logger, run func(context.Context) error) error {
	if s.Address == "" {
		return run(ctx)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Address)
	if err != nil {
		return fmt.Errorf("serving metrics (--%s): %w", Flag, err)
	}
	log.Info("serving metrics", "url", "http://"+listener.Addr().String()+Path)
	mux := http.NewServeMux()
	mux.Handle("GET "+Path, legacyregistry.Handler())
	server := &http.Server{Handler: mux, ReadTimeout: timeout, WriteTimeout: timeout, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	group, ctx := errgroup.WithContext(ctx)
	ctx, end := context.WithCancel(ctx)
	defer end()
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving metrics: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	group.Go(func() error {
		defer end()
		return run(ctx)
	})
	return group.Wait()
}
