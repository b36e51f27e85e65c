package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"

	"rik.dev/rik/internal/excerpt"
	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// killAfter is how long a child may exceed its own limit, in order to report that the limit was
// reached.
const killAfter = 30 * time.Second

// child is one run of the unpacker.
type child struct {
	store  *Store
	log    *slog.Logger
	pinned []digest.Digest
	// progress receives the progress of the transfer.
	progress func(wire.Progress)
}

func (c *child) unpin() { c.store.unpin(c.pinned) }

// run makes one pull in an unpacker.
func (c *child) run(ctx context.Context, req wire.Request) (*wire.Result, error) {
	return runUnpacker(ctx, c.store.cfg.Unpacker, req.TempDir, req.Limits.Time, func(stdin io.Writer, stdout io.Reader) (*wire.Result, error) {
		return c.exchange(req, stdin, stdout)
	})
}

// runUnpacker starts the unpacker in a new process group, and kills the group when ctx ends. It
// returns after the process has been waited for. The process inherits files, from descriptor 3 on;
// runUnpacker closes them.
func runUnpacker(ctx context.Context, argv []string, dir string, limit time.Duration,
	exchange func(stdin io.Writer, stdout io.Reader) (*wire.Result, error), files ...*os.File,
) (*wire.Result, error) {
	inherited := sync.OnceFunc(func() {
		for _, f := range files {
			_ = f.Close()
		}
	})
	defer inherited()
	ctx, stop := context.WithTimeoutCause(ctx, limit+killAfter, wire.ErrTimeout)
	defer stop()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Dir = dir
	cmd.ExtraFiles = files
	stderr := excerpt.NewTail(tailBytes)
	cmd.Stderr = stderr
	// This is only for a process that keeps our end of stderr open after the group was killed.
	cmd.WaitDelay = killAfter
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("starting rik-unpack: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting rik-unpack: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting rik-unpack: %w", err)
	}
	inherited() // so that a reader of a pipe sees the end when the child ends
	result, err := exchange(stdin, stdout)
	// The child exits at the end of its input, in any state.
	_ = stdin.Close()
	_ = cmd.Wait() // ProcessState has the same information
	switch {
	case err == nil:
		return result, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, errNoResult):
		return nil, fmt.Errorf("%w (%s): %s", err, cmd.ProcessState, stderr)
	}
	return nil, err
}

// errNoResult means that the child exited or was killed without a message.
var errNoResult = errors.New("rik-unpack ended without a result")

// exchange exchanges the messages of one pull over the pipes.
func (c *child) exchange(req wire.Request, stdin io.Writer, stdout io.Reader) (*wire.Result, error) {
	out := json.NewEncoder(stdin)
	if err := out.Encode(req); err != nil {
		return nil, fmt.Errorf("%w: sending the request for the pull: %w", errNoResult, err)
	}
	in := json.NewDecoder(stdout)
	for {
		var e wire.Event
		if err := in.Decode(&e); err != nil {
			return nil, fmt.Errorf("%w: %w", errNoResult, err)
		}
		switch {
		case e.Resolved != nil:
			c.pinned = append(c.pinned, e.Resolved.Chain...)
			c.store.pin(e.Resolved.Chain)
			c.log.Info("image resolved", "digest", e.Resolved.Digest, "layers", len(e.Resolved.Chain))
			if err := out.Encode(wire.Ack{Pinned: true}); err != nil {
				return nil, fmt.Errorf("%w: %w", errNoResult, err)
			}
		case e.Progress != nil:
			c.progress(*e.Progress)
		case e.Layer != nil:
			c.log.Info("image layer ready", "layer", e.Layer.Index+1, "digest", e.Layer.Digest,
				"bytes", e.Layer.Bytes, "entries", e.Layer.Entries, "reused", e.Layer.Reused)
			if len(e.Layer.Skipped) > 0 {
				c.log.Warn("device nodes left out of an image", "layer", e.Layer.Index+1, "paths", e.Layer.Skipped)
			}
		case e.Failure != nil:
			return nil, e.Failure.Err()
		case e.Result != nil:
			return e.Result, nil
		}
	}
}

// tailBytes limits the end of the child's standard error in an error.
const tailBytes = 2048
