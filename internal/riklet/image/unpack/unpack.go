// Package unpack is the inside of the image store's child process,
// cmd/rik-unpack: it fetches one image and unpacks its layers.
//
// It is apart from the store because the libraries that it needs, for
// registries, archives and layers, would add megabytes to an agent that holds
// them all day and calls none of them.
package unpack

import (
	"context"
	"fmt"
	"io"

	"rik.dev/rik/internal/riklet/image/internal/fetch"
)

// Unpack does one pull, ordered on stdin and reported on stdout as the store's
// wire format says. It takes no arguments. The error has been reported already
// and is for the exit code.
func Unpack(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) > 0 {
		return fmt.Errorf("unpack takes no arguments, got %q", args)
	}
	return fetch.Run(ctx, stdin, stdout)
}
