package multicluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/component-base/metrics/legacyregistry"
)

const (
	metricsFlag = "metrics-address"
	metricsPath = "/metrics"
	// metricsTimeout limits a slow or hanging client.
	metricsTimeout = 10 * time.Second
)

// metricsPort is the address at which a command without an API serves its metrics. It has no
// authentication, so it must be a loopback address.
type metricsPort struct{ address string }

func (m *metricsPort) addFlags(s *pflag.FlagSet) {
	s.StringVar(&m.address, metricsFlag, "", "loopback address and port of the metrics, such as 127.0.0.1:9090; every user of this machine can read them; none by default")
}

func (m *metricsPort) validate() error {
	if m.address == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(m.address)
	if err != nil {
		return fmt.Errorf("--%s %q: use an address and a port, such as 127.0.0.1:9090", metricsFlag, m.address)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("--%s %q: metrics are served without authentication, so use a loopback address, such as 127.0.0.1:9090", metricsFlag, m.address)
	}
	return nil
}

// beside calls run, and serves metrics meanwhile if there is an address. If the port cannot be
// opened, it returns an error before it calls run.
func (m *metricsPort) beside(ctx context.Context, log *slog.Logger, run func(context.Context) error) error {
	if m.address == "" {
		return run(ctx)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", m.address)
	if err != nil {
		return fmt.Errorf("serving metrics (--%s): %w", metricsFlag, err)
	}
	log.Info("serving metrics", "url", "http://"+listener.Addr().String()+metricsPath)
	mux := http.NewServeMux()
	mux.Handle("GET "+metricsPath, legacyregistry.Handler())
	server := &http.Server{Handler: mux, ReadTimeout: metricsTimeout, WriteTimeout: metricsTimeout, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
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
