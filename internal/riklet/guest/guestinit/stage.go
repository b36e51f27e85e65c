package guestinit

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/guest/wire"
)

// StageWord is the program name with which the init starts itself to become a container's
// process.
const StageWord = "rik-stage"

// stageFD is the descriptor of a stage's control socket.
const stageFD = 3

// order describes what a stage must do.
type order struct {
	Process guest.Process
	// Image is the mounted image and Dir the run's directory, for a container. Join is a process
	// of the container to enter, for a command in it.
	Image, Dir string
	Join       int
}

// Stage becomes the process of an order, or reports an error and exits. Everything happens on
// one thread, because namespaces, capabilities and users belong to a thread, and the thread that
// executes the program passes its own on.
func Stage() {
	runtime.LockOSThread()
	unix.CloseOnExec(stageFD)
	control := os.NewFile(stageFD, "control")
	err := stage(control)
	_, _ = control.Write([]byte{failureByte})
	_ = wire.WriteLine(control, guest.NewFailure(err))
	os.Exit(126)
}

func stage(control *os.File) error {
	var o order
	if err := wire.ReadLine(bufio.NewReader(control), &o); err != nil {
		return err
	}
	// The init is exempt from out-of-memory kills; its containers are not.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("0"), 0)
	if o.Join != 0 {
		if err := join(o.Join); err != nil {
			return err
		}
	} else if err := makeRoot(o); err != nil {
		return err
	}
	unix.Umask(0o022)
	return become(control, o)
}

// join enters a container's mount and cgroup namespaces. The fork has already entered its PID
// namespace.
func join(pid int) error {
	var spaces []*os.File
	for _, kind := range []string{"cgroup", "mnt"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		if err != nil {
			return fmt.Errorf("the container has ended: %w", err)
		}
		defer f.Close()
		spaces = append(spaces, f)
	}
	// Threads share their root and working directory. A thread that enters a mount namespace
	// must not.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	for _, f := range spaces {
		if err := unix.Setns(int(f.Fd()), 0); err != nil {
			return fmt.Errorf("entering the container: %w", err)
		}
	}
	return nil
}

// become drops the privileges that the process must not have, and executes the program.
func become(control *os.File, o order) error {
	p := o.Process
	who, err := lookUser(p.User)
	if err != nil {
		return err
	}
	if p.NonRoot && who.uid == 0 {
		return fmt.Errorf("runAsNonRoot is set, and the container would run as root (user %q): set runAsUser, or use an image with a user", p.User)
	}
	if p.TTY {
		if err := openTerminal(control, who.uid, p.Size); err != nil {
			return err
		}
	}
	dir := p.Dir
	if dir == "" {
		dir = "/"
	}
	if !p.Exec {
		// Like container engines do, because an image may name a directory that it does not
		// contain.
		_ = os.MkdirAll(dir, 0o755)
	}
	env := environment(p, who)
	if err := who.take(p.Capabilities, p.NewPrivs); err != nil {
		return err
	}
	if err := unix.Chdir(dir); err != nil {
		return fmt.Errorf("%w: working directory %s: %w", guest.ErrNotRunnable, dir, err)
	}
	program, err := lookProgram(p.Argv[0], env)
	if err != nil {
		return err
	}
	err = syscall.Exec(program, p.Argv, env)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s, or the interpreter that it names: %w", guest.ErrNoProgram, program, err)
	}
	return fmt.Errorf("%w: %s: %w", guest.ErrNotRunnable, program, err)
}

// defaultPath is the PATH that container engines set for a process without one.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment returns the process's environment with the usual defaults. If a variable occurs
// twice, the last value counts.
func environment(p guest.Process, who identity) []string {
	var env []string
	at := map[string]int{}
	for _, e := range p.Env {
		key, _, ok := strings.Cut(e, "=")
		if !ok || key == "" {
			continue
		}
		if i, seen := at[key]; seen {
			env[i] = e
			continue
		}
		at[key] = len(env)
		env = append(env, e)
	}
	add := func(key, value string) {
		if _, ok := at[key]; !ok {
			env = append(env, key+"="+value)
		}
	}
	add("PATH", defaultPath)
	add("HOME", who.home)
	if p.TTY {
		add("TERM", "xterm")
	}
	return env
}

// lookProgram finds a program as execvp does, and distinguishes its errors.
func lookProgram(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, runnable(name)
	}
	var failure error
	for dir := range strings.SplitSeq(variable(env, "PATH"), ":") {
		path := filepath.Join("/", dir, name)
		err := runnable(path)
		if err == nil {
			return path, nil
		}
		if errors.Is(err, guest.ErrNotRunnable) && failure == nil {
			failure = err
		}
	}
	if failure != nil {
		return "", failure
	}
	return "", fmt.Errorf("%w: %q is not on the PATH %s", guest.ErrNoProgram, name, variable(env, "PATH"))
}

func runnable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("%w: %w", guest.ErrNotRunnable, err)
		}
		return fmt.Errorf("%w: %w", guest.ErrNoProgram, err)
	}
	if info.IsDir() {
		return fmt.Errorf("%w: %s is a directory", guest.ErrNotRunnable, path)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("%w: %s: %w", guest.ErrNotRunnable, path, err)
	}
	return nil
}

func variable(env []string, key string) string {
	for _, e := range env {
		if k, v, ok := strings.Cut(e, "="); ok && k == key {
			return v
		}
	}
	return ""
}

// openTerminal creates a terminal in the container, makes it the controlling terminal of the
// process, and sends its other end to the init.
func openTerminal(control *os.File, uid int, size guest.Size) error {
	master, err := unix.Open("/dev/pts/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening a terminal: %w", err)
	}
	defer unix.Close(master)
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return fmt.Errorf("unlocking the terminal: %w", err)
	}
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return fmt.Errorf("opening the terminal's other end: %w", errno)
	}
	slave := int(peer)
	if size != (guest.Size{}) {
		if err := unix.IoctlSetWinsize(slave, unix.TIOCSWINSZ, &unix.Winsize{Row: size.Height, Col: size.Width}); err != nil {
			return fmt.Errorf("setting the size of the terminal: %w", err)
		}
	}
	if err := unix.Fchown(slave, uid, -1); err != nil {
		return fmt.Errorf("setting the owner of the terminal: %w", err)
	}
	if err := unix.IoctlSetInt(slave, unix.TIOCSCTTY, 0); err != nil {
		return fmt.Errorf("setting the controlling terminal: %w", err)
	}
	if err := unix.Sendmsg(int(control.Fd()), []byte{ttyByte}, unix.UnixRights(master), nil, 0); err != nil {
		return fmt.Errorf("sending the terminal: %w", err)
	}
	for fd := range 3 {
		if err := unix.Dup3(slave, fd, 0); err != nil {
			return err
		}
	}
	return unix.Close(slave)
}
