package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/signals"
)

// Run becomes the program in the environment. It returns only by ending the process, after it
// has reported an error.
func Run() {
	// Namespaces and capabilities belong to a thread, and those of the executing thread are
	// kept.
	runtime.LockOSThread()
	// The program must not inherit descriptors that the caller forgot to close.
	if err := unix.CloseRange(ErrorFD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		syscall.CloseOnExec(ErrorFD) // Linux before 5.11; Go's own descriptors are closed anyway
	}
	p, err := parse(os.LookupEnv)
	if err == nil {
		err = signals.Restore()
	}
	if err == nil {
		err = become(p)
	}
	f := failureOf(err)
	if isPipe(ErrorFD) {
		err = f.write(os.NewFile(ErrorFD, "failure"))
	} else {
		_, err = fmt.Fprintln(os.Stderr, "rik-shim:", f.Text)
	}
	if err != nil {
		os.Exit(CodeFailed)
	}
	os.Exit(f.Code)
}

func isPipe(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO
}

// become returns only if it fails. Steps that need root come before dropping it. The directory
// is entered with the permissions that the program will have.
func become(p Process) error {
	syscall.Umask(0o022)
	steps := []func(Process) error{
		enterNamespaces, arrangeMounts, enterEnclosed, adjustScore, ownStreams, joinCgroups, limitFiles, enterEnclosed, dropBounding, setIDs, dropCapabilities, enterDir,
	}
	for _, step := range steps {
		if err := step(p); err != nil {
			return err
		}
	}
	return execute(p)
}

func enterNamespaces(p Process) error {
	if p.NamespacesOf == 0 {
		return nil
	}
	for _, ns := range []struct {
		name string
		kind int
	}{{"net", unix.CLONE_NEWNET}, {"ipc", unix.CLONE_NEWIPC}, {"uts", unix.CLONE_NEWUTS}} {
		path := fmt.Sprintf("/proc/%d/ns/%s", p.NamespacesOf, ns.name)
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = errors.Join(unix.Setns(fd, ns.kind), unix.Close(fd))
		}
		if err != nil {
			return fmt.Errorf("entering the instance's namespace %s (its supervisor may have ended): %w", path, err)
		}
	}
	return nil
}

// limitFiles uses package syscall, so that it does not restore the limit that the Go runtime
// found at its start. No files are opened after it.
func limitFiles(p Process) error {
	if p.OpenFiles == 0 {
		return nil
	}
	limit := syscall.Rlimit{Cur: p.OpenFiles, Max: p.OpenFiles}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("setting the limit of open files to %d: %w (the sysctl fs.nr_open is the machine's limit)", p.OpenFiles, err)
	}
	return nil
}

// adjustScore always writes the score, because the inherited one is the supervisor's, which
// makes the kernel kill it last.
func adjustScore(p Process) error {
	if err := os.WriteFile("/proc/self/oom_score_adj", fmt.Appendln(nil, p.OOMScoreAdj), 0); err != nil {
		return fmt.Errorf("setting the OOM score to %d: %w", p.OOMScoreAdj, err)
	}
	return nil
}

// ownStreams makes the user the owner of the pipes and terminals, because a program that opens
// /dev/stdout again needs permission, and the owner is root.
func ownStreams(p Process) error {
	for fd := range 3 {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Uid == p.UID || !private(st) {
			continue // a closed one needs no owner
		}
		if err := unix.Fchown(fd, int(p.UID), -1); err != nil {
			return fmt.Errorf("setting the owner of descriptor %d to user %d: %w", fd, p.UID, err)
		}
	}
	return nil
}

// The major numbers of pseudo terminals, from the kernel's
// Documentation/admin-guide/devices.txt.
const firstPTY, lastPTY = 136, 143

// private reports whether a descriptor was created for this process. /dev/null was not.
func private(st unix.Stat_t) bool {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFIFO:
		return true
	case unix.S_IFCHR:
		major := unix.Major(st.Rdev)
		return major >= firstPTY && major <= lastPTY
	}
	return false
}

// joinCgroups is the last step that may block. After it the limits apply. A limit on processes
// counts our own threads too, so no new ones may start.
func joinCgroups(p Process) error {
	for _, file := range p.Cgroups {
		if filepath.Base(file) != "cgroup.procs" {
			return fmt.Errorf("%s is not the cgroup.procs of a cgroup", file)
		}
		fd, err := unix.Open(file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			zero := [1]byte{'0'}
			_, err = unix.Write(fd, zero[:])
			err = errors.Join(err, unix.Close(fd))
		}
		if err != nil {
			return fmt.Errorf("joining the cgroup of %s: %w", file, err)
		}
	}
	return nil
}

func keepsCapabilities(p Process) bool { return p.UID == 0 && p.KeepCapabilities }

// lastCapability is at least the highest possible capability: sets have 64 bits.
const lastCapability = 63

// dropBounding empties the bounding set, which limits the capabilities that executing a file can
// add.
func dropBounding(p Process) error {
	if keepsCapabilities(p) {
		return nil
	}
	for c := range uintptr(lastCapability + 1) {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			return nil // beyond the kernel's last capability
		}
		if err != nil {
			return fmt.Errorf("dropping capability %d from the bounding set: %w", c, err)
		}
	}
	return nil
}

// setIDs must run before the capabilities are dropped. Package syscall changes all threads, and
// panics if that succeeds only for some of them.
func setIDs(p Process) error {
	groups := make([]int, 0, len(p.Groups))
	for _, g := range p.Groups {
		groups = append(groups, int(g))
	}
	if err := unix.Setgroups(groups); err != nil {
		return fmt.Errorf("setting the supplementary groups: %w", err)
	}
	if err := unix.Setresgid(int(p.GID), int(p.GID), int(p.GID)); err != nil {
		return fmt.Errorf("switching to group %d: %w", p.GID, err)
	}
	if err := unix.Setresuid(int(p.UID), int(p.UID), int(p.UID)); err != nil {
		return fmt.Errorf("switching to user %d: %w", p.UID, err)
	}
	return nil
}

func dropCapabilities(p Process) error {
	if keepsCapabilities(p) {
		return nil
	}
	// Clear the ambient set before the others, because the inheritable set was not emptied by
	// the change of the user.
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("dropping the ambient capabilities: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData // version 3 has two words per set
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("dropping the capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	return nil
}

// enterEnclosed enters the directory as root. Later the process can return to it only through
// the names in it.
func enterEnclosed(p Process) error {
	if !p.Enclosed {
		return nil
	}
	if err := unix.Chdir(p.Dir); err != nil {
		return fmt.Errorf("entering the working directory %s: %w", p.Dir, err)
	}
	return nil
}

func enterDir(p Process) error {
	if p.Enclosed {
		return nil
	}
	dir := p.Dir
	if dir == "" {
		dir = "/"
	}
	if err := unix.Chdir(dir); err != nil {
		return enterError(dir, p.UID, err)
	}
	return nil
}

// enterError returns the reason why a user cannot enter a directory, and a remedy.
func enterError(dir string, uid uint32, err error) error {
	err = fmt.Errorf("entering the working directory %s as user %d: %w", dir, uid, err)
	if errors.Is(err, unix.EACCES) {
		err = fmt.Errorf("%w: let other users enter it and every directory above it (chmod o+x), or run the program as a user who may enter it", err)
	}
	return err
}

// defaultPath is used if an environment has no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// execute behaves like execvp(3), except that it does not run a script without an interpreter
// line with a shell.
func execute(p Process) error {
	name := p.Argv[0]
	if strings.Contains(name, "/") {
		return refused(name, syscall.Exec(name, p.Argv, p.Env))
	}
	path := pathOf(p.Env)
	var denied error
	for dir := range strings.SplitSeq(path, ":") {
		if dir == "" {
			dir = "."
		}
		file := dir + "/" + name // not Join, which would remove the "./"
		err := syscall.Exec(file, p.Argv, p.Env)
		if errors.Is(err, syscall.EACCES) && denied == nil {
			denied = refused(file, err) // another directory may have an executable one
			continue
		}
		if !missing(err) && !errors.Is(err, syscall.EACCES) {
			return refused(file, err)
		}
	}
	if denied != nil {
		return denied
	}
	return &Failure{Code: CodeNotFound, Errno: syscall.ENOENT, Text: fmt.Sprintf("there is no program %q in any directory of the PATH %s", name, path)}
}

func pathOf(env []string) string {
	for _, variable := range env {
		if path, ok := strings.CutPrefix(variable, "PATH="); ok {
			return path
		}
	}
	return defaultPath
}

func missing(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR)
}

// refused returns the reason why the kernel did not execute a file.
func refused(file string, err error) error {
	f := &Failure{Code: CodeNotRunnable, Text: fmt.Sprintf("executing %s: %v", file, err)}
	_ = errors.As(err, &f.Errno)
	switch f.Errno {
	case syscall.ENOENT, syscall.ENOTDIR:
		f.Code = CodeNotFound
		if _, err := os.Stat(file); err == nil {
			f.Text += " (the file exists, but its interpreter or dynamic loader does not)"
		}
	case syscall.EACCES:
		f.Text += " (it must be a file with the execute permission, on a file system without noexec)"
	case syscall.ENOEXEC:
		f.Text += " (it is neither a program for this architecture nor a script that begins with #!)"
	case syscall.E2BIG:
		f.Text += " (arguments and environment together are too long)"
	}
	return f
}
