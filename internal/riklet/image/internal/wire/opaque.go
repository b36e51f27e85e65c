package wire

import (
	"os"

	"golang.org/x/sys/unix"
)

// OpaqueAttribute returns the attribute that marks a directory as opaque for overlayfs, with the
// value "y": it hides the directories of lower layers. Only root may set the real one; tests use
// another.
func OpaqueAttribute() string {
	if os.Geteuid() != 0 {
		return "user.overlay.opaque"
	}
	return "trusted.overlay.opaque"
}

// Opaque reports whether a directory of a layer hides those of the layers below.
func Opaque(dir string) bool {
	value := make([]byte, 1)
	n, err := unix.Lgetxattr(dir, OpaqueAttribute(), value)
	return err == nil && n == 1 && value[0] == 'y'
}
