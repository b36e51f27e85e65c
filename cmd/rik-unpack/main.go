// Command rik-unpack pulls one image, or unpacks one archive. The riklet starts it for each.
// Users do not call it. It is a separate process so that it can be killed, and so that its
// memory is freed when it ends.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"rik.dev/rik/internal/riklet/image/unpack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := unpack.Unpack(ctx, os.Args[1:], os.Stdin, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "rik-unpack:", err)
		os.Exit(1)
	}
}
