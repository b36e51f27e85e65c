package wire

import (
	"os"

	"golang.org/x/sys/unix"
)

// OpaqueAttribute is overlayfs's mark, "y", of a directory of a layer that
// hides those below. Only root may set the true one; tests have another.
func OpaqueAttribute() string {
	if os.Geteuid() != 0 {
		return "user.overlay.opaque"
	}
	return "trusted.overlay.opaque"
}

// Opaque says whether a directory of a layer hides those of the layers below.
func Opaque(dir string) bool {
	value := make([]byte, 1)
	n, err := unix.Lgetxattr(dir, OpaqueAttribute(), value)
	return err == nil && n == 1 && value[0] == 'y'
}
