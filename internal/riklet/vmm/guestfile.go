package vmm

import (
	"os"
	"path/filepath"
)

// The names of the files that guests boot, in the directory next to the program.
const (
	KernelFile    = "kernel"
	InitramfsFile = "initramfs"

	guestDir = "guest"
)

// GuestFile returns the absolute path of a file that guests boot. It is the given file, which must
// exist. If none is given, it is the file that make builds next to the program, which need not
// exist: a node without it reports that it runs no microVMs.
func GuestFile(given, name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return given, err
	}
	// A server validates the options of its node twice. The second time, the default is given.
	if beside := filepath.Join(filepath.Dir(self), guestDir, name); given == "" || given == beside {
		return beside, nil
	}
	absolute, err := filepath.Abs(given)
	if err == nil {
		_, err = os.Stat(absolute)
	}
	return absolute, err
}
