package jointoken

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"rik.dev/rik/internal/atomicfile"
)

// EnsureFile creates a token without an end and saves it in a file, unless the file exists. It is
// the token of the administrator, from the first start of the cluster.
func (t *Tokens) EnsureFile(ctx context.Context, path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	token, err := t.Create(ctx, Options{Description: "created at the first start, saved in " + path})
	if err != nil {
		return err
	}
	return atomicfile.Write(path, []byte(token.Text()+"\n"))
}
