// Package controltest runs rik's real controller over an in-process API server, without a
// scheduler. Deletions of workloads cascade and tenants get their objects, but no instance gets
// a node.
package controltest

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/client-go/rest"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller"
	"rik.dev/rik/internal/testkit/apitest"
)

var errNoScheduler = errors.New("this test has no scheduler")

// Start runs the controller until the end of the test or until the caller calls stop, which may
// be called again. A server may have only one controller.
func Start(tb testing.TB, s *apitest.Server) (stop func()) {
	tb.Helper()
	config := rest.CopyConfig(s.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: rikv1alpha1.UserController, Groups: []string{rikv1alpha1.GroupAdministrators}}
	c, err := controller.New(controller.Config{
		RestConfig: config, Instances: s.Instances(), Identity: "test", Logger: slog.New(slog.DiscardHandler),
		SchedulerDial: func(context.Context) (*grpc.ClientConn, error) { return nil, errNoScheduler },
	})
	if err != nil {
		tb.Fatalf("making a controller: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("running the controller: %v", err)
		}
	})
	tb.Cleanup(stop)
	timer := time.NewTimer(apitest.Timeout)
	defer timer.Stop()
	select {
	case <-c.Ready():
	case err := <-done:
		done <- nil // for stop
		tb.Fatalf("the controller ended: %v", err)
	case <-timer.C:
		tb.Fatal("the controller is not ready")
	}
	return stop
}
