// Command riklet is the node agent. It joins this machine to a cluster and runs instances on it.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"rik.dev/rik/internal/app/node"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := node.Main(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}
