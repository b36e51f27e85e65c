// Package unpack is the code of the image store's child process, cmd/rik-unpack. It fetches one
// image and unpacks its layers.
//
// It is separate from the store, because its libraries for registries, archives and layers would
// add megabytes to an agent that never calls them.
package unpack

import (
	"context"
	"fmt"
	"io"

	"rik.dev/rik/internal/riklet/image/internal/fetch"
)

// Unpack makes one pull. It reads the request from stdin and writes the result to stdout in the
// store's wire format. It accepts no arguments. The error is already reported on stdout; it is
// only for the exit code.
func Unpack(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) > 0 {
		return fmt.Errorf("unpack takes no arguments, got %q", args)
	}
	return fetch.Run(ctx, stdin, stdout)
}
