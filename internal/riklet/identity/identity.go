// Package identity tells which machine this is and since which boot, and which
// installation of a riklet on it. A host name is no identity: two machines may
// share one, which the cluster notices by the machine id; and two riklets on one
// machine, or on copies of one, share that too.
package identity

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"rik.dev/rik/internal/atomicfile"
)

// ownFile keeps a made machine id in the riklet's state directory.
const ownFile = "machine-id"

// InstallationFile keeps the installation's key in the riklet's state directory.
const InstallationFile = "installation-key"

// machineForm is that of machine-id(5).
var machineForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

// Source says where the kernel and the distribution keep the ids. The zero
// value is the machine itself; tests name files of their own.
type Source struct {
	MachineIDFile string // /etc/machine-id when empty
	BootIDFile    string // /proc/sys/kernel/random/boot_id when empty
}

// MachineID is the machine's id. Where the distribution has none, for instance
// in a minimal image, one is made and kept in stateDir, which must exist.
func (s Source) MachineID(stateDir string) (string, error) {
	path := s.MachineIDFile
	if path == "" {
		path = "/etc/machine-id"
	}
	own := filepath.Join(stateDir, ownFile)
	// The own one goes first: a distribution that makes its id later must not
	// turn the node into another machine.
	for _, candidate := range []string{own, path} {
		id, err := read(candidate)
		if err != nil {
			return "", err
		}
		if machineForm.MatchString(id) {
			return id, nil
		}
	}
	id := newID()
	if err := atomicfile.Write(own, []byte(id+"\n")); err != nil {
		return "", fmt.Errorf("saving the machine ID: %w", err)
	}
	return id, nil
}

// InstallationKey is the secret of the riklet that has stateDir, which must exist:
// made once, and kept there. The caller keeps others off the directory.
func InstallationKey(stateDir string) (string, error) {
	path := filepath.Join(stateDir, InstallationFile)
	key, err := read(path)
	if err != nil || key != "" {
		return key, err
	}
	key = newID() + newID() // 256 bits
	if err := atomicfile.Write(path, []byte(key+"\n")); err != nil {
		return "", fmt.Errorf("saving the installation's key: %w", err)
	}
	return key, nil
}

// RunID names one run of a riklet.
func RunID() string { return newID() }

// BootID changes with every boot of the machine.
func (s Source) BootID() (string, error) {
	path := s.BootIDFile
	if path == "" {
		path = "/proc/sys/kernel/random/boot_id"
	}
	id, err := read(path)
	if err != nil {
		return "", err
	}
	if id == "" {
		return "", fmt.Errorf("%s contains no boot ID", path)
	}
	return id, nil
}

// read takes a missing file for an empty one.
func read(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("reading an ID: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

func newID() string {
	var raw [16]byte
	// crypto/rand.Read never returns an error since Go 1.24.
	_, _ = rand.Read(raw[:])
	return hex.EncodeToString(raw[:])
}
