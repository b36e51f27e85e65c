// Command rik-unpack pulls one image, or unpacks one archive. The riklet starts it for each and
// nobody needs to call it by hand: a process of its own can be killed, and takes
// its memory with it.
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
