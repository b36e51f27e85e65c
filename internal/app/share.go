package app

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"rik.dev/rik/internal/apiserver"
)

// shareConfig gives the user who started the server under sudo a configuration
// for rikctl, unless they have one. A failure is only told: the server runs.
func shareConfig(dataDir string, log *slog.Logger) {
	name := os.Getenv("SUDO_USER")
	if name == "" || name == "root" {
		return
	}
	path, err := copyConfig(dataDir, name)
	switch {
	case errors.Is(err, fs.ErrExist):
	case err != nil:
		log.Warn("no configuration for the user behind sudo", "user", name, "err", err)
	default:
		log.Info("wrote a configuration for rikctl", "user", name, "path", path)
	}
}

// copyConfig writes ~/.rik/config.yaml of a user, owned by them, mode 0600.
func copyConfig(dataDir, name string) (string, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return "", fmt.Errorf("looking up user %s: %w", name, err)
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return "", err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return "", err
	}
	raw, err := os.ReadFile(filepath.Join(dataDir, apiserver.RIKConfigFile))
	if err != nil {
		return "", err
	}
	// The folder is the user's, and we are root: a link must not lead us out of
	// it, nor to a file that exists.
	home, err := os.OpenRoot(u.HomeDir)
	if err != nil {
		return "", err
	}
	defer home.Close() //nolint:errcheck // only a handle
	if err := home.Mkdir(".rik", 0o700); err == nil {
		if err := home.Lchown(".rik", uid, gid); err != nil {
			return "", err
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	file, err := home.OpenFile(".rik/config.yaml", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	_, err = file.Write(raw)
	return filepath.Join(u.HomeDir, ".rik", "config.yaml"), errors.Join(err, file.Chown(uid, gid), file.Close())
}
