package spec

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/moby/sys/user"
)

// User is who a container's process is.
type User struct {
	UID, GID uint32
	Groups   []uint32
}

// maxUserFile bounds what is read of an image's user database: it is hostile
// input, and real ones have a few kilobytes.
const maxUserFile = 1 << 20

// LookUp finds a user ("name", "uid", either with ":group"; "" is root) in the
// image's own files. The files are opened inside the root: a link in the image
// cannot lead out of it. The root must not be in use yet.
func LookUp(rootfs, name string) (User, error) {
	passwd, err := openInside(rootfs, "/etc/passwd")
	if err != nil {
		return User{}, err
	}
	defer passwd.Close()
	group, err := openInside(rootfs, "/etc/group")
	if err != nil {
		return User{}, err
	}
	defer group.Close()
	return parseUser(name, passwd, group)
}

func parseUser(name string, passwd, group io.Reader) (User, error) {
	u, err := user.GetExecUser(name, &user.ExecUser{}, io.LimitReader(passwd, maxUserFile), io.LimitReader(group, maxUserFile))
	if err != nil {
		return User{}, fmt.Errorf("%w: %q: %w", ErrUser, name, err)
	}
	result := User{UID: uint32(u.Uid), GID: uint32(u.Gid)} //nolint:gosec // the parser bounds them
	for _, g := range u.Sgids {
		result.Groups = append(result.Groups, uint32(g)) //nolint:gosec // the parser bounds them
	}
	return result, nil
}

// openInside gives an empty reader for a file that is not there, or is not a
// plain file: opening a pipe would wait for ever.
func openInside(rootfs, name string) (io.ReadCloser, error) {
	path, err := securejoin.SecureJoin(rootfs, name)
	if err != nil {
		return nil, fmt.Errorf("looking for %s in the image: %w", name, err)
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && !info.Mode().IsRegular()) {
		return io.NopCloser(strings.NewReader("")), nil
	}
	if err != nil {
		return nil, err
	}
	return os.Open(path)
}
