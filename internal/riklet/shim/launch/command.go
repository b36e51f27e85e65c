package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// Command prepares p to be run beside its supervisor: shim is the path of the
// supervisor's program. The caller sets the standard streams, a session or terminal
// (SysProcAttr) and how it is killed, and calls Start. Env, Dir and ExtraFiles are
// taken.
func Command(shim string, p Process) *exec.Cmd {
	cmd := exec.Command(shim, Word)
	cmd.Env = Environ(p)
	cmd.Dir = "/"
	return cmd
}

// Start starts a command that Command made and returns when its program runs. After
// an error nothing is left to wait for; a *Failure says that the program was not
// reached, and why. A caller that uses cmd.Start instead learns the same from the
// exit code and the standard error.
func Start(cmd *exec.Cmd) error {
	sent, send, err := os.Pipe()
	if err != nil {
		return err
	}
	defer sent.Close()
	cmd.ExtraFiles = []*os.File{send}
	err = errors.Join(cmd.Start(), send.Close())
	if cmd.Process == nil {
		return fmt.Errorf("calling %s: %w", cmd.Path, err)
	}
	if failed := ReadFailure(sent); failed != nil || err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // its exit code says no more than the failure
		return errors.Join(failed, err)
	}
	return nil
}
