package layer

import (
	"context"
	"fmt"
	"io"

	"github.com/opencontainers/umoci/oci/layer"
)

// Pack writes the tar archive of a stored layer. It is the inverse of Apply: overlayfs's whiteouts
// become those of images.
func Pack(ctx context.Context, root string, to io.Writer) (err error) {
	archive := layer.GenerateInsertLayer(root, "/", false, &layer.RepackOptions{OnDiskFormat: options().OnDiskFormat})
	// Closing ends the library's goroutine.
	defer func() { _ = archive.Close() }()
	if _, err := io.Copy(to, WithContext(ctx, archive)); err != nil {
		return fmt.Errorf("packing the files: %w", err)
	}
	return nil
}
