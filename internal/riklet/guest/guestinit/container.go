package guestinit

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/guest"
)

// container is one run of a container, from its first process to its last.
type container struct {
	process guest.Process
	dir     string // on the writable disk: upper, work, root, names
	cgroup  string
	pid     int
}

// Start starts a container, or a command in a running one.
func (k *Kernel) Start(p guest.Process, stdin bool) (*Child, error) {
	if len(p.Argv) == 0 {
		return nil, fmt.Errorf("%w: the command is empty", guest.ErrNotRunnable)
	}
	if err := validName("container", p.Container); err != nil {
		return nil, err
	}
	if p.Exec {
		return k.startExec(p, stdin)
	}
	c, order, err := k.prepare(p)
	if err != nil {
		return nil, err
	}
	child, err := k.launch(order, c.cgroup, stdin)
	if err != nil {
		return nil, errors.Join(err, k.forget(c))
	}
	k.mu.Lock()
	c.pid = child.PID
	k.mu.Unlock()
	wait, before := child.Wait, oomKills(c.cgroup)
	child.Kill = func() { killCgroup(c.cgroup) }
	child.Wait = func() guest.Exit {
		exit := wait()
		exit.OOMKilled = oomKills(c.cgroup) > before
		if err := k.forget(c); err != nil {
			console("rik-init: cleaning up after %s: %v", p.Container, err)
		}
		return exit
	}
	return child, nil
}

// prepare creates everything that a container needs, and reserves its name.
func (k *Kernel) prepare(p guest.Process) (*container, order, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.configured {
		return nil, order{}, errors.New("this guest is not configured yet")
	}
	if _, ok := k.containers[p.Container]; ok {
		return nil, order{}, fmt.Errorf("the container %q already runs", p.Container)
	}
	image, err := k.mountImage(p.Root)
	if err != nil {
		return nil, order{}, err
	}
	k.runs++
	id := p.Container + "-" + strconv.Itoa(k.runs)
	c := &container{process: p, dir: filepath.Join(containerDir, id), cgroup: filepath.Join(containersCgroup, id)}
	for _, dir := range []string{"upper", "work", "root", "names"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(c.dir, dir), 0o755))
	}
	err = errors.Join(err, c.writeNames(k.hosts, k.resolv), makeCgroup(c.cgroup, p))
	if err != nil {
		return nil, order{}, errors.Join(err, os.RemoveAll(c.dir), removeCgroup(c.cgroup))
	}
	k.containers[p.Container] = c
	return c, order{Process: p, Image: image, Dir: c.dir}, nil
}

// writeNames overwrites the files in place, because containers have these files mounted.
func (c *container) writeNames(hosts, resolv string) error {
	hostname, err := os.Hostname()
	if err != nil {
		return err
	}
	for file, text := range map[string]string{"hosts": hosts, "resolv.conf": resolv, "hostname": hostname + "\n"} {
		if err := os.WriteFile(filepath.Join(c.dir, "names", file), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// forget kills the remaining processes of a container, and frees its name.
func (k *Kernel) forget(c *container) error {
	killCgroup(c.cgroup)
	err := removeCgroup(c.cgroup)
	k.mu.Lock()
	if k.containers[c.process.Container] == c {
		delete(k.containers, c.process.Container)
	}
	k.mu.Unlock()
	return errors.Join(err, os.RemoveAll(c.dir))
}

// startExec starts a command in a running container.
func (k *Kernel) startExec(p guest.Process, stdin bool) (*Child, error) {
	k.mu.Lock()
	c, ok := k.containers[p.Container]
	var of container
	if ok {
		of = *c
	}
	k.mu.Unlock()
	if !ok || of.pid == 0 {
		return nil, fmt.Errorf("the container %q does not run", p.Container)
	}
	p.Env = withDefaults(of.process.Env, p.Env)
	p.Capabilities, p.NewPrivs = of.process.Capabilities, of.process.NewPrivs
	p.User = cmp.Or(p.User, of.process.User)
	p.Dir = cmp.Or(p.Dir, of.process.Dir)
	child, err := k.launch(order{Process: p, Join: of.pid}, of.cgroup, stdin)
	if err != nil {
		return nil, err
	}
	// The command leads a session. Processes that left the session end with the container.
	signal := child.Signal
	child.Kill = func() {
		_ = unix.Kill(-child.PID, unix.SIGKILL)
		_ = signal(int(unix.SIGKILL))
	}
	return child, nil
}

// withDefaults adds the variables that a container's environment lacks.
func withDefaults(env, defaults []string) []string {
	all := slices.Clone(env)
	for _, e := range defaults {
		name, _, _ := strings.Cut(e, "=")
		if !slices.ContainsFunc(env, func(has string) bool { return strings.HasPrefix(has, name+"=") }) {
			all = append(all, e)
		}
	}
	return all
}

// launch starts a stage: this program again, which executes its order and becomes the command.
// launch returns when the command runs, or with an error.
func (k *Kernel) launch(o order, cgroup string, stdin bool) (*Child, error) {
	ends, err := newEnds(o.Process.TTY, stdin)
	if err != nil {
		return nil, err
	}
	defer ends.closeChildEnds()
	group, err := os.Open(cgroup)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the container has ended: %w", err), ends.closeParentEnds())
	}
	defer group.Close()
	attributes := &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(group.Fd())}
	if o.Join == 0 {
		attributes.Cloneflags = unix.CLONE_NEWNS | unix.CLONE_NEWPID
	}
	pid, ended, err := k.reaper.spawn(func() (int, error) { return forkStage(ends, attributes, o.Join) })
	if err != nil {
		return nil, errors.Join(fmt.Errorf("starting a process: %w", err), ends.closeParentEnds())
	}
	ends.closeChildEnds()
	tty, err := command(ends.control, o)
	if err != nil {
		<-ended
		return nil, errors.Join(err, ends.closeParentEnds())
	}
	child := &Child{PID: pid, Stdout: ends.stdout, Stderr: ends.stderr, TTY: tty}
	if ends.stdin != nil {
		child.Stdin = ends.stdin
	}
	if tty != nil {
		child.Stdin, child.Stdout = nopCloser{tty}, tty
	}
	child.Signal = func(sig int) error { return k.reaper.signal(pid, sig) }
	child.Wait = func() guest.Exit { return guest.Exit{Code: exitCode(<-ended)} }
	return child, nil
}

// nopCloser leaves a terminal open, because its reader closes it.
type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// forkStage forks on a separate thread. To put a child into another PID namespace, the thread
// must enter that namespace. After that it cannot create threads, so it ends.
func forkStage(e *ends, attributes *syscall.SysProcAttr, join int) (int, error) {
	type forked struct {
		pid int
		err error
	}
	result := make(chan forked)
	go func() {
		if join != 0 {
			runtime.LockOSThread() // never unlocked, so the thread ends with its goroutine
			if err := enterPIDs(join); err != nil {
				result <- forked{0, err}
				return
			}
		}
		pid, err := syscall.ForkExec("/proc/self/exe", []string{StageWord}, &syscall.ProcAttr{
			Dir: "/", Env: []string{"GOMAXPROCS=1"}, Files: e.childEnds(), Sys: attributes,
		})
		result <- forked{pid, err}
	}()
	r := <-result
	return r.pid, r.err
}

func enterPIDs(of int) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", of))
	if err != nil {
		return fmt.Errorf("the container has ended: %w", err)
	}
	defer ns.Close()
	return unix.Setns(int(ns.Fd()), unix.CLONE_NEWPID)
}
