// Package userconfig gives the user who started a server with sudo a configuration for rikctl.
package userconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
)

// Share copies a configuration for rikctl to ~/.rik/config.yaml of the user who started the server
// with sudo, unless that user has one. It only logs errors, because the server works without.
func Share(source string, log *slog.Logger) {
	name := os.Getenv("SUDO_USER")
	if name == "" || name == "root" {
		return
	}
	u, err := user.Lookup(name)
	var path string
	if err != nil {
		err = fmt.Errorf("looking up user %s: %w", name, err)
	} else {
		path, err = copyTo(source, u)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
	case err != nil:
		log.Warn("writing a configuration for rikctl failed", "user", name, "err", err)
	default:
		log.Info("wrote a configuration for rikctl", "user", name, "path", path)
	}
}

// copyTo writes ~/.rik/config.yaml of a user, owned by that user, with mode 0600.
func copyTo(source string, u *user.User) (string, error) {
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return "", err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return "", err
	}
	raw, err := os.ReadFile(source)
	if err != nil {
		return "", err
	}
	// The directory belongs to the user and this process is root. A link must not lead out of
	// the directory, or to an existing file.
	home, err := os.OpenRoot(u.HomeDir)
	if err != nil {
		return "", err
	}
	defer home.Close()
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
