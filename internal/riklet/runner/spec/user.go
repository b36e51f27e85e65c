package spec

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/moby/sys/user"
	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/safeopen"
)

// User is the identity of a container's process.
type User struct {
	UID, GID uint32
	Groups   []uint32
	// Home is the value of HOME unless something else sets it. Empty leaves it to the runtime.
	Home string
}

// noHome is the home directory of a user that the image does not list, as in runtimes.
const noHome = "/"

// maxUserFile bounds how many bytes of an image's user database are read. The database is
// untrusted input, and real ones have a few kilobytes.
const maxUserFile = 1 << 20

// LookUp finds a user in the image's own files. name is "name" or "uid", either with ":group"; ""
// means root. The files are opened inside rootfs, so that a link in the image cannot point
// outside. A file that is not regular is not read, because opening a pipe could block forever. A
// number needs neither file. No process may use rootfs yet.
func LookUp(rootfs, name string) (User, error) {
	passwd, errPasswd := openInside(rootfs, "/etc/passwd")
	group, errGroup := openInside(rootfs, "/etc/group")
	defer func() { _ = errors.Join(passwd.Close(), group.Close()) }()
	for _, err := range []error{errPasswd, errGroup} {
		if not := (*safeopen.NotRegularError)(nil); err != nil && !errors.As(err, &not) {
			return User{}, err
		}
	}
	u, err := parseUser(name, passwd, group)
	if err != nil {
		for _, why := range []error{errPasswd, errGroup} {
			if why != nil {
				err = fmt.Errorf("%w; %w", err, why)
			}
		}
		return User{}, err
	}
	return u, nil
}

func parseUser(name string, passwd, group io.Reader) (User, error) {
	u, err := user.GetExecUser(name, &user.ExecUser{}, io.LimitReader(passwd, maxUserFile), io.LimitReader(group, maxUserFile))
	if err != nil {
		return User{}, fmt.Errorf("%w: %q: %w", ErrUser, name, err)
	}
	result := User{UID: uint32(u.Uid), GID: uint32(u.Gid), Home: u.Home}
	if result.Home == "" || strings.Contains(result.Home, "\x00") {
		result.Home = noHome
	}
	for _, g := range u.Sgids {
		result.Groups = append(result.Groups, uint32(g))
	}
	return result, nil
}

// openInside returns an empty reader if the file does not exist, and also together with an error.
func openInside(rootfs, name string) (io.ReadCloser, error) {
	nothing := io.NopCloser(strings.NewReader(""))
	path, err := securejoin.SecureJoin(rootfs, name)
	if err != nil {
		return nothing, fmt.Errorf("looking for %s in the image: %w", name, err)
	}
	f, err := safeopen.OpenNoFollow(path)
	var not *safeopen.NotRegularError
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return nothing, nil
	case errors.As(err, &not):
		return nothing, &safeopen.NotRegularError{Path: name, Is: not.Is}
	case err != nil:
		return nothing, fmt.Errorf("opening %s of the image: %w", name, err)
	}
	return f, nil
}
