// Command testserver runs a part of rik's servers, for tests of its clients:
//
//	testserver cluster DIR    the API server of a rik cluster
//	testserver sqlite DIR     the same, on SQLite
//	testserver kcp DIR        the API server of a kcp
//	testserver datastore DIR  the embedded etcd
//
// It has no controllers, and links only the code of these servers, so that a change of a
// controller does not require a new build. It prints "ready" with its address, and ends on
// SIGTERM. It is not part of the product.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sync/errgroup"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/apiserver/datastore"
	"rik.dev/rik/internal/multicluster/negotiation/plan/storage"
)

// envLog is the level of the log, as in package served.
const envLog = "RIK_TEST_LOG"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "testserver:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 2 {
		switch args[0] {
		case "cluster":
			return serveAPI(ctx, apiserver.Config{DataDir: args[1]})
		case "sqlite":
			return serveAPI(ctx, apiserver.Config{DataDir: args[1], DatastoreEndpoint: "sqlite://"})
		case "kcp":
			return serveAPI(ctx, apiserver.Config{DataDir: args[1], Profile: apiserver.ProfileKCP, Loss: storage.Loss})
		case "datastore":
			return serveDatastore(ctx, args[1])
		}
	}
	return errors.New("usage: testserver cluster|sqlite|kcp|datastore DIR")
}

func serveAPI(ctx context.Context, cfg apiserver.Config) error {
	cfg.BindAddress, cfg.Logger = "127.0.0.1", logger()
	server, err := apiserver.New(ctx, cfg)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return server.Run(ctx) })
	group.Go(func() error {
		select {
		case <-ctx.Done():
		case <-server.Ready():
			fmt.Println("ready", server.URL())
		}
		return nil
	})
	return group.Wait()
}

func serveDatastore(ctx context.Context, dir string) error {
	store, err := datastore.Open(ctx, datastore.Config{Dir: dir, Logger: logger()})
	if err != nil {
		return err
	}
	fmt.Println("ready", store.Endpoint().Servers[0])
	select {
	case <-ctx.Done():
		return store.Close()
	case err := <-store.Failed():
		return errors.Join(err, store.Close())
	}
}

func logger() *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(os.Getenv(envLog))); err != nil {
		level = slog.LevelWarn
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}
