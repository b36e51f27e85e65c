// Package identity identifies the machine, its current boot, and the installation of a riklet on
// it. A host name does not suffice: two machines may have the same one, which the cluster detects
// by the machine ID. Two riklets on one machine, or on copies of a machine, also have the same
// machine ID, but different installation keys.
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

// ownFile is the file in the riklet's state directory with a machine ID that rik has created.
const ownFile = "machine-id"

// InstallationFile is the file in the riklet's state directory with the installation's key.
const InstallationFile = "installation-key"

// machineForm is the format of machine-id(5).
var machineForm = regexp.MustCompile(`^[0-9a-f]{32}$`)

// Source contains the paths of the files with the IDs. The zero value means those of this machine.
// Tests use other files.
type Source struct {
	MachineIDFile string // /etc/machine-id if empty
	BootIDFile    string // /proc/sys/kernel/random/boot_id if empty
}

// MachineID returns the ID of the machine. If the distribution has none, for example in a minimal
// image, MachineID creates one and saves it in stateDir, which must exist.
func (s Source) MachineID(stateDir string) (string, error) {
	path := s.MachineIDFile
	if path == "" {
		path = "/etc/machine-id"
	}
	own := filepath.Join(stateDir, ownFile)
	// A created ID has priority. Otherwise the node would become another machine when the
	// distribution creates its ID later.
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

// InstallationKey returns the secret of the riklet that uses stateDir, which must exist. It is
// created once and saved there. The caller must prevent other processes from using the directory.
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

// RunID returns an ID for one run of a riklet.
func RunID() string { return newID() }

// BootID returns an ID that changes with every boot of the machine.
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

// read returns the content of a file, or "" if the file does not exist.
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
