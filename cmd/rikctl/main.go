// Command rikctl is the command line of a rik cluster.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"rik.dev/rik/internal/rikctl"
	"rik.dev/rik/internal/rikctl/config"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	code := rikctl.Execute(ctx, os.Args[1:], streams, config.Machine(""))
	stop()
	os.Exit(code)
}
