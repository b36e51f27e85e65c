package guestinit

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/moby/sys/user"
	"golang.org/x/sys/unix"
)

// identity is a user of a container's root, with its groups.
type identity struct {
	uid, gid int
	groups   []int
	home     string
}

// maxAccountFile limits the size of /etc/passwd and /etc/group, because the image is not trusted.
const maxAccountFile = 4 << 20

// lookUser finds a user in the root of this process. spec has the form of an image's
// configuration.
func lookUser(spec string) (identity, error) {
	passwd, closePasswd := accounts("/etc/passwd")
	defer closePasswd()
	group, closeGroup := accounts("/etc/group")
	defer closeGroup()
	found, err := user.GetExecUser(spec, &user.ExecUser{Home: "/"}, passwd, group)
	if err != nil {
		return identity{}, fmt.Errorf("finding the user %q in the image: %w", spec, err)
	}
	return identity{uid: found.Uid, gid: found.Gid, groups: found.Sgids, home: found.Home}, nil
}

// accounts opens a file that may be missing, or may not be a regular file.
func accounts(path string) (io.Reader, func()) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return strings.NewReader(""), func() {}
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = f.Close()
		return strings.NewReader(""), func() {}
	}
	return io.LimitReader(f, maxAccountFile), func() { _ = f.Close() }
}

// capabilities by number: https://man7.org/linux/man-pages/man7/capabilities.7.html
var capabilities = strings.Fields(`CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL
SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW
IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT
SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP
MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE`)

// capabilitySet returns the set of the named capabilities. An unknown name is an error.
func capabilitySet(names []string) (uint64, error) {
	var set uint64
	for _, name := range names {
		found := false
		for number, known := range capabilities {
			if strings.TrimPrefix(name, "CAP_") == known {
				set |= 1 << number
				found = true
			}
		}
		if !found {
			return 0, fmt.Errorf("no capability %q", name)
		}
	}
	return set, nil
}

// take changes the calling thread to this user with exactly these capabilities. Without newPrivs
// the thread cannot gain more.
func (i identity) take(names []string, newPrivs bool) error {
	keep, err := capabilitySet(names)
	if err != nil {
		return err
	}
	for c := range uint(64) {
		if keep&(1<<c) != 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil {
			break // beyond the kernel's last capability
		}
	}
	if err := i.setIDs(); err != nil {
		return err
	}
	// A user other than root has lost all capabilities by now.
	if i.uid == 0 {
		if err := setCapabilities(keep); err != nil {
			return fmt.Errorf("dropping capabilities: %w", err)
		}
	}
	if newPrivs {
		return nil
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// setIDs changes only this thread, because this thread executes the program.
func (i identity) setIDs() error {
	groups := make([]uint32, 0, len(i.groups)+1)
	for _, g := range i.groups {
		groups = append(groups, uint32(g))
	}
	if err := rawSetgroups(groups); err != nil {
		return fmt.Errorf("setting the groups: %w", err)
	}
	gid, uid := uintptr(i.gid), uintptr(i.uid)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, gid, gid, gid); errno != 0 {
		return fmt.Errorf("switching to group %d: %w", i.gid, errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); errno != 0 {
		return fmt.Errorf("switching to user %d: %w", i.uid, errno)
	}
	return nil
}

func setCapabilities(set uint64) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{}
	for word := range data {
		bits := uint32(set >> (32 * word))
		data[word] = unix.CapUserData{Effective: bits, Permitted: bits}
	}
	return unix.Capset(&header, &data[0])
}
