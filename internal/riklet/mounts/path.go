package mounts

import (
	"errors"
	"strings"
)

// CheckPath returns an error for a directory that cannot be in the options of a mount. Commas, colons
// and backslashes separate the options and the layers of an overlay mount.
func CheckPath(dir string) error {
	if strings.ContainsAny(dir, `,:\`) {
		return errors.New("contains a comma, a colon or a backslash, which mount options cannot contain")
	}
	return nil
}
