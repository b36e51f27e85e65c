package bridge

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// set writes the settings that differ, in the namespace of the calling thread, and reports
// whether any did. It skips IPv6 settings on a kernel without IPv6.
func set(sysctls ...Sysctl) (changed bool, err error) {
	for _, s := range sysctls {
		path := filepath.Join("/proc/sys", s.Path)
		old, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(s.Path, "net/ipv6/") {
			continue
		}
		if err == nil && strings.TrimSpace(string(old)) == s.Value {
			continue
		}
		if err == nil {
			err = os.WriteFile(path, []byte(s.Value), 0)
		}
		if err != nil {
			return changed, fmt.Errorf("setting %s to %s: %w", s.Path, s.Value, err)
		}
		changed = true
	}
	return changed, nil
}
