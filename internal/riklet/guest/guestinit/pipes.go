package guestinit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/guest/wire"
)

// ends holds both ends of a stage's descriptors: its standard streams, and the control socket on
// which it receives its order and reports the result.
type ends struct {
	stdin          *os.File // nil without input
	stdout, stderr *os.File
	control        *os.File

	child []*os.File
}

func newEnds(tty, stdin bool) (*ends, error) {
	e := &ends{}
	if err := e.open(tty, stdin); err != nil {
		e.closeChildEnds()
		return nil, errors.Join(err, e.closeParentEnds())
	}
	return e, nil
}

func (e *ends) open(tty, stdin bool) error {
	if tty || !stdin {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		e.child = append(e.child, null)
	} else {
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		e.stdin, e.child = w, append(e.child, r)
	}
	for _, ours := range []**os.File{&e.stdout, &e.stderr} {
		if tty {
			// The terminal replaces it later. Until then it receives errors of the stage's Go
			// runtime.
			e.child = append(e.child, os.Stderr)
			continue
		}
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		*ours, e.child = r, append(e.child, w)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	e.control = os.NewFile(uintptr(pair[0]), "control")
	e.child = append(e.child, os.NewFile(uintptr(pair[1]), "control"))
	return nil
}

// childEnds returns the stage's descriptors, in the order in which it expects them.
func (e *ends) childEnds() []uintptr {
	fds := make([]uintptr, 0, len(e.child))
	for _, f := range e.child {
		fds = append(fds, f.Fd())
	}
	return fds
}

func (e *ends) closeChildEnds() {
	for _, f := range e.child {
		if f != os.Stderr {
			_ = f.Close()
		}
	}
	e.child = nil
}

func (e *ends) closeParentEnds() error {
	var err error
	for _, f := range []*os.File{e.stdin, e.stdout, e.stderr, e.control} {
		if f == nil {
			continue
		}
		if closed := f.Close(); !errors.Is(closed, os.ErrClosed) {
			err = errors.Join(err, closed)
		}
	}
	return err
}

// ttyByte is sent with a terminal, and failureByte before an error message. If the socket is
// closed without either, the command runs.
const (
	ttyByte     = 't'
	failureByte = 'f'
)

// command sends a stage its order and waits until the command runs. It returns the terminal if
// the stage has created one.
func command(control *os.File, o order) (*os.File, error) {
	defer control.Close()
	if err := wire.WriteLine(control, o); err != nil {
		return nil, fmt.Errorf("sending the process to start: %w", err)
	}
	var tty *os.File
	for {
		kind, file, err := receive(int(control.Fd()))
		switch {
		case errors.Is(err, io.EOF):
			if o.Process.TTY && tty == nil {
				return nil, errors.New("the process ended before it began")
			}
			return tty, nil
		case err == nil && kind == ttyByte:
			tty = file
			continue
		case err == nil:
			err = readFailure(control)
		}
		if tty != nil {
			_ = tty.Close()
		}
		return nil, err
	}
}

func readFailure(control *os.File) error {
	var f guest.Failure
	if err := json.NewDecoder(control).Decode(&f); err != nil {
		return fmt.Errorf("the process ended before it began: %w", err)
	}
	text := errors.New(f.Text)
	switch f.Kind {
	case guest.KindNoProgram:
		return fmt.Errorf("%w: %w", guest.ErrNoProgram, text)
	case guest.KindNotRunnable:
		return fmt.Errorf("%w: %w", guest.ErrNotRunnable, text)
	}
	return text
}

// receive reads one byte, and the file descriptor that may come with it.
func receive(socket int) (byte, *os.File, error) {
	var one [1]byte
	space := make([]byte, unix.CmsgSpace(4))
	n, got, _, _, err := unix.Recvmsg(socket, one[:], space, unix.MSG_CMSG_CLOEXEC)
	for errors.Is(err, unix.EINTR) {
		n, got, _, _, err = unix.Recvmsg(socket, one[:], space, unix.MSG_CMSG_CLOEXEC)
	}
	if err != nil || n == 0 {
		if err == nil || errors.Is(err, unix.ECONNRESET) {
			err = io.EOF
		}
		return 0, nil, err
	}
	if got == 0 {
		return one[0], nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(space[:got])
	if err != nil || len(messages) != 1 {
		return 0, nil, fmt.Errorf("a malformed control message: %w", err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return 0, nil, fmt.Errorf("a malformed control message: %w", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return 0, nil, err
	}
	return one[0], os.NewFile(uintptr(fds[0]), "terminal"), nil
}
