// Command rik-dns is the name server of a node. The riklet starts it, and it continues to run
// when the riklet stops. Users do not call it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"rik.dev/rik/internal/riklet/network/nameserver/server"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := server.Run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "rik-dns:", err)
		os.Exit(1)
	}
}
