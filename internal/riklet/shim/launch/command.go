package launch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// Command returns a command that runs p next to its supervisor. shim is the path of the
// supervisor's program. The caller sets the standard streams, a session or terminal
// (SysProcAttr) and the way to kill it, and calls Start. Env, Dir and ExtraFiles are in use.
func Command(shim string, p Process) *exec.Cmd {
	cmd := exec.Command(shim, Word)
	cmd.Env = Environ(p)
	cmd.Dir = "/"
	return cmd
}

// Start starts a command from Command and returns when its program runs. After an error there is
// no process to wait for. A *Failure has the reason why the program was not started. A caller
// that uses cmd.Start instead gets the same from the exit code and the standard error.
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
		_ = cmd.Wait() // its exit code has no more information than the failure
		return errors.Join(failed, err)
	}
	return nil
}
