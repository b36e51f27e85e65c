package vmmtest

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"rik.dev/rik/internal/excerpt"
	"rik.dev/rik/internal/riklet/shim/launch"
	"rik.dev/rik/internal/riklet/vmm"
)

// process is a running VMM.
type process struct {
	cmd    *exec.Cmd
	output *excerpt.Tail
	ended  chan struct{}
}

// boot prepares a machine and starts its VMM, which then waits for Start.
func (s *suite) boot(t *testing.T, m vmm.Machine) *process {
	t.Helper()
	p, err := s.Driver.Prepare(s.context(t), m)
	if err != nil {
		t.Fatalf("Prepare() = %v", err)
	}
	return start(t, p)
}

// start runs a driver's process as a supervisor would, except for the cgroups.
func start(t *testing.T, p launch.Process) *process {
	t.Helper()
	run := &process{output: excerpt.NewTail(outputTail), ended: make(chan struct{})}
	run.cmd = exec.Command(p.Argv[0], p.Argv[1:]...)
	run.cmd.Env, run.cmd.Dir = p.Env, p.Dir
	run.cmd.Stdout, run.cmd.Stderr = run.output, run.output
	run.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 && p.UID != 0 {
		run.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: p.UID, Gid: p.GID, Groups: p.Groups}
	}
	if err := run.cmd.Start(); err != nil {
		t.Fatalf("starting %v: %v", p.Argv, err)
	}
	go func() {
		_ = run.cmd.Wait()
		close(run.ended)
	}()
	t.Cleanup(func() {
		run.kill()
		if t.Failed() {
			t.Logf("the VMM's output ends with:\n%s", run.output)
		}
	})
	return run
}

// kill kills the VMM and all its children, and waits for its end.
func (p *process) kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.ended
}

// outputTail limits how much of a VMM's output is kept, in bytes.
const outputTail = 4000
