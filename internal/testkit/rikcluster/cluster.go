// Package rikcluster runs the built programs for end-to-end tests: a server, or its components
// as separate processes, and the command lines against it.
//
// No code of rik runs in the test process. Tests check from outside: exit codes, /proc, mounts,
// cgroups, runc.
package rikcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"rik.dev/rik/internal/testkit/interrupt"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/program"
)

// Timeout is how long Eventually waits. It is long, because two cores may be busy with other
// work.
const Timeout = 4 * time.Minute

// Options configure a cluster.
type Options struct {
	// NoAgent starts a server without a node.
	NoAgent bool
	// Split starts controller, scheduler and riklet as separate processes.
	Split bool
	// Machines is the number of nodes, each in its own network namespace and connected by a
	// link. The server itself then has no node.
	Machines int
	// Place is where the server runs with its node. The default is the namespace of the tests.
	Place *Place
	// MicroVMs lets nodes run microVMs. Checking whether a node can takes seconds of CPU time,
	// so other tests do not.
	MicroVMs bool
	// Args are added to the command line of the server (or controller).
	Args []string
	// AgentArgs are added to the command line of a separate riklet.
	AgentArgs []string
}

// Cluster is a running cluster on this machine.
type Cluster struct {
	// Dir contains all files of the cluster.
	Dir string
	// Bin contains the built programs.
	Bin string

	tb        testing.TB
	options   Options
	processes map[string]*Process
	machines  []*Machine
	servers   []*Server
	api       *api
}

// Start starts a cluster, waits until it is ready and removes it with all its files at the end
// of the test. It uses the standard ports, so tests with it must run one after the other, in
// their own network namespace (see Main).
func Start(tb testing.TB, options Options) *Cluster {
	tb.Helper()
	privileged.Require(tb)
	dir, err := os.MkdirTemp("/var/tmp", "rik-e2e-")
	if err != nil {
		tb.Fatal(err)
	}
	// Apps pass through it to their own files, as they pass through /run and /var/lib elsewhere.
	if err := os.Chmod(dir, 0o711); err != nil {
		tb.Fatal(err)
	}
	c := &Cluster{Dir: dir, Bin: Bin(tb), tb: tb, options: options, processes: map[string]*Process{}, api: &api{}}
	if options.Machines > 0 {
		c.options.NoAgent = true
		c.options.Args = append([]string{"--advertise-address", ServerAddress}, options.Args...)
		MakeLan(tb)
	}
	tb.Cleanup(c.remove)
	for _, name := range c.components() {
		if name == "riklet" {
			c.awaitToken()
		}
		c.StartComponent(name)
	}
	c.waitReady()
	if options.Machines > 0 {
		c.awaitToken()
	}
	for range options.Machines {
		c.AddMachine(options.AgentArgs...)
	}
	c.AwaitNodes(options.Machines)
	return c
}

// AwaitNodes waits until n nodes are ready.
func (c *Cluster) AwaitNodes(n int) {
	c.tb.Helper()
	c.Eventually(func() error {
		c.mustLive()
		got, err := c.readyNodes()
		if err == nil && got < n {
			err = fmt.Errorf("%d of %d nodes are ready", got, n)
		}
		return err
	})
}

// Bin returns the directory of the built programs.
func Bin(tb testing.TB) string {
	tb.Helper()
	bin := os.Getenv(program.EnvBin)
	if bin == "" {
		tb.Fatal("RIK_BIN names no folder with the built programs: run the tests with make test or make e2e")
	}
	if _, err := os.Stat(filepath.Join(bin, "rik")); err != nil {
		tb.Fatalf("RIK_BIN has no program: %v (make build)", err)
	}
	return bin
}

// In returns the same cluster for a subtest, so that failures belong to the subtest.
func (c *Cluster) In(tb testing.TB) *Cluster {
	inner := *c
	inner.tb = tb
	return &inner
}

// components returns the names of the processes, in the order of their start.
func (c *Cluster) components() []string {
	if !c.options.Split {
		return []string{"server"}
	}
	if c.options.NoAgent {
		return []string{"scheduler", "controller"}
	}
	return []string{"scheduler", "controller", "riklet"}
}

// StartComponent starts one process of the cluster: server, scheduler, controller or riklet.
func (c *Cluster) StartComponent(name string) *Process {
	c.tb.Helper()
	return c.StartComponentWith(name)
}

// StartComponentWith starts one process of the cluster with further arguments.
func (c *Cluster) StartComponentWith(name string, more ...string) *Process {
	c.tb.Helper()
	program, args := c.command(name)
	args = append(args, more...)
	program, args = c.options.Place.inside(filepath.Join(c.Bin, program), args...)
	p := startProcess(c.tb, name, filepath.Join(c.Dir, name+".log"), program, args...)
	c.processes[name] = p
	return p
}

// command returns the command line of a component.
func (c *Cluster) command(name string) (program string, args []string) {
	state := slices.Concat(c.dirs(), c.settings(), []string{"--node-name", "node-1"})
	switch name {
	case "server":
		args = []string{"server", "--data-dir", c.DataDir()}
		if p := c.options.Place; p != nil {
			args = append(args, "--bind-address", p.Address, "--node-address", p.Address)
		}
		if c.options.NoAgent {
			args = append(args, "--no-agent")
		} else {
			args = append(args, state...)
			args = append(args, c.options.AgentArgs...)
		}
		return "rik", append(args, c.options.Args...)
	case "controller":
		return "controller", append([]string{"--data-dir", c.DataDir()}, c.options.Args...)
	case "scheduler":
		return "scheduler", []string{"--data-dir", c.DataDir()}
	default:
		args = append([]string{"--server", "https://127.0.0.1:5000", "--token-file", c.TokenFile()}, state...)
		return "riklet", append(args, c.options.AgentArgs...)
	}
}

// dirs returns flags that separate the node's files and cgroups from others on this machine.
func (c *Cluster) dirs() []string {
	return c.withVMM("--state-dir", c.StateDir(), "--run-dir", c.RunDir(), "--cgroup-parent", "/"+filepath.Base(c.Dir))
}

// settings returns flags that keep the node from the settings of this machine.
func (c *Cluster) settings() []string {
	return []string{"--image-dir", c.ImageDir(), "--registries-dir", filepath.Join(c.Dir, "etc")}
}

// ImageDir returns the directory of image archives of the first node. It does not exist at first.
func (c *Cluster) ImageDir() string { return filepath.Join(c.Dir, "archives") }

func (c *Cluster) withVMM(args ...string) []string {
	if c.options.MicroVMs {
		return args
	}
	return append(args, "--vmm", "none")
}

// DataDir returns the server's data directory.
func (c *Cluster) DataDir() string { return filepath.Join(c.Dir, "data") }

// StateDir returns the node's state directory.
func (c *Cluster) StateDir() string { return filepath.Join(c.Dir, "state") }

// RunDir returns the node's directory for files that need not survive a reboot.
func (c *Cluster) RunDir() string { return filepath.Join(c.Dir, "run") }

// Process returns a component of the cluster.
func (c *Cluster) Process(name string) *Process { return c.processes[name] }

// Restart starts a component again after it ended.
func (c *Cluster) Restart(name string) {
	c.tb.Helper()
	c.StartComponent(name)
}

// TokenFile returns the path of the join token that the first start created.
func (c *Cluster) TokenFile() string { return filepath.Join(c.DataDir(), "node-token") }

func (c *Cluster) awaitToken() {
	c.tb.Helper()
	c.Eventually(func() error {
		c.mustLive()
		_, err := os.Stat(c.TokenFile())
		return err
	})
}

// mustLive fails the test if a component has ended.
func (c *Cluster) mustLive() {
	c.tb.Helper()
	for _, p := range c.processes {
		if err := p.Alive(); err != nil {
			c.tb.Fatalf("%s ended while starting: %v\n%s", p.Name, err, p.Tail())
		}
	}
}

// AwaitReady waits until the API, and a node of the server, are ready.
func (c *Cluster) AwaitReady() {
	c.tb.Helper()
	c.waitReady()
}

func (c *Cluster) waitReady() {
	c.tb.Helper()
	c.Eventually(func() error {
		c.mustLive()
		if _, err := c.Ask("/readyz"); err != nil || c.options.NoAgent {
			return err
		}
		n, err := c.readyNodes()
		if err == nil && n == 0 {
			err = errors.New("no node is ready")
		}
		return err
	})
}

// Eventually calls check until it returns nil, and fails the test with the last error after
// Timeout.
func (c *Cluster) Eventually(check func() error) {
	c.tb.Helper()
	Eventually(c.tb, Timeout, check)
}

// The pause between two checks is short, but longer than a check, and grows with the time waited
// so far, so that the checks leave CPU time for the cluster.
const (
	shortPause    = 50 * time.Millisecond
	longPause     = 2 * time.Second
	pauseForLooks = 3
	pauseOfWait   = 20
)

// Eventually calls check until it returns nil. It fails the test with the last error after the
// timeout, or when the tests are interrupted.
func Eventually(tb testing.TB, timeout time.Duration, check func() error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), timeout)
	defer cancel()
	start := time.Now()
	for {
		began := time.Now()
		err := check()
		if err == nil {
			return
		}
		pause := max(shortPause, pauseForLooks*time.Since(began), time.Since(start)/pauseOfWait)
		select {
		case <-ctx.Done():
			tb.Fatalf("still not so after %v: %v", timeout, err)
		case <-interrupt.Done():
			tb.Fatalf("%v; not so yet: %v", interrupt.Cause(), err)
		case <-time.After(min(pause, longPause)):
		}
	}
}

// Result is the result of a command.
type Result struct {
	Stdout, Stderr string
	Code           int
	Err            error // with both outputs; nil if the exit code is 0
}

// Rikctl runs rikctl as administrator and fails the test on an error.
func (c *Cluster) Rikctl(args ...string) string {
	c.tb.Helper()
	out := c.TryRikctl(args...)
	if out.Err != nil {
		c.tb.Fatalf("rikctl %s: %v", strings.Join(args, " "), out.Err)
	}
	return out.Stdout
}

// TryRikctl runs rikctl as administrator.
func (c *Cluster) TryRikctl(args ...string) Result {
	c.tb.Helper()
	return c.run([]string{"RIKCONFIG=" + filepath.Join(c.DataDir(), "config.yaml")}, "", "rikctl", args...)
}

// RikctlInput runs rikctl with the given standard input.
func (c *Cluster) RikctlInput(input string, args ...string) Result {
	c.tb.Helper()
	return c.run([]string{"RIKCONFIG=" + filepath.Join(c.DataDir(), "config.yaml")}, input, "rikctl", args...)
}

// Rik runs the program rik as administrator.
func (c *Cluster) Rik(args ...string) Result {
	c.tb.Helper()
	return c.run([]string{"RIKCONFIG=" + filepath.Join(c.DataDir(), "config.yaml")}, "", "rik", args...)
}

// Kubectl runs kubectl with the generated kubeconfig.
func (c *Cluster) Kubectl(input string, args ...string) Result {
	c.tb.Helper()
	return c.run([]string{"KUBECONFIG=" + filepath.Join(c.DataDir(), "admin.kubeconfig")}, input, "kubectl", args...)
}

func (c *Cluster) run(env []string, input, program string, args ...string) Result {
	c.tb.Helper()
	program, args = c.options.Place.inside(filepath.Join(c.Bin, program), args...)
	return run(append(env, "HOME="+c.Dir), input, program, args...)
}

// Run runs one of the built programs without a cluster.
func Run(tb testing.TB, program string, args ...string) Result {
	tb.Helper()
	return run(nil, "", filepath.Join(Bin(tb), program), args...)
}

// Command runs any program.
func Command(tb testing.TB, program string, args ...string) Result {
	tb.Helper()
	return run(nil, "", program, args...)
}

// run runs a program to its end. It kills the program after Timeout.
func run(env []string, input, program string, args ...string) Result {
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin = strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	result := Result{Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}
	if err != nil {
		result.Err = fmt.Errorf("%w\n%s%s", err, stdout.String(), stderr.String())
	}
	return result
}

// Empty removes all state of the cluster. No process of it may run.
func (c *Cluster) Empty() {
	c.tb.Helper()
	c.api.forget()
	errs := []error{os.RemoveAll(c.DataDir())}
	if !c.options.NoAgent {
		errs = append(errs, c.run(nil, "", "riklet", append([]string{"purge"}, c.dirs()...)...).Err)
	}
	if err := errors.Join(errs...); err != nil {
		c.tb.Fatal(err)
	}
}

// remove stops every process, removes the node's instances and deletes the directory. It reports
// leftovers, and fails the test for them.
func (c *Cluster) remove() {
	c.api.forget()
	for _, p := range c.processes {
		p.Stop()
	}
	if c.tb.Failed() {
		for _, p := range c.processes {
			c.tb.Logf("the log of %s ended with:\n%s", p.Name, p.Tail())
		}
	}
	var errs []error
	if !c.options.NoAgent {
		out := c.run(nil, "", "riklet", append([]string{"purge"}, c.dirs()...)...)
		errs = append(errs, out.Err)
	}
	for _, m := range c.machines {
		errs = append(errs, m.remove())
	}
	for _, s := range c.servers {
		errs = append(errs, s.remove())
	}
	if c.options.Place != nil {
		errs = append(errs, c.options.Place.remove())
	}
	errs = append(errs, c.leftovers()...)
	errs = append(errs, os.RemoveAll(c.Dir))
	if err := errors.Join(errs...); err != nil {
		c.tb.Errorf("the cluster left something behind: %v", err)
	}
}
