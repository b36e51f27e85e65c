package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/instance"
)

// runTTY connects the process to a terminal of the node. A runtime creates another terminal
// inside the container and forwards the input and the window sizes.
func (e *Execution) runTTY(ctx context.Context) (int, error) {
	master, slave, err := openPTY()
	if err != nil {
		return 0, err
	}
	defer master.Close()
	e.Cmd.Stdin, e.Cmd.Stdout, e.Cmd.Stderr = slave, slave, slave
	e.Cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = e.Start()
	_ = slave.Close()
	if err != nil {
		return 0, err
	}
	done := make(chan struct{})
	var output sync.WaitGroup
	output.Go(func() {
		sink := e.Options.Stdout
		if sink == nil {
			sink = io.Discard
		}
		copyOutput(sink, master) // ends with EIO when the last slave closes
	})
	if e.Options.Stdin != nil {
		go func() { _, _ = io.Copy(master, e.Options.Stdin) }()
	}
	if e.Options.Resize != nil {
		go resize(master, e.Options.Resize, done)
	}
	err = e.Cmd.Wait()
	close(done)
	stopReading(master)
	output.Wait()
	return e.result(ctx, err)
}

func resize(master *os.File, sizes <-chan instance.Size, done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case s, ok := <-sizes:
			if !ok {
				return
			}
			_ = control(master, func(fd int) error {
				return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: s.Height, Col: s.Width})
			})
		}
	}
}

// openPTY opens a terminal in raw mode, because the terminal inside the container does the line
// editing.
func openPTY() (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("creating a terminal: %w", err)
	}
	master = os.NewFile(uintptr(fd), "ptmx")
	defer func() {
		if err != nil {
			_ = master.Close()
		}
	}()
	if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, fmt.Errorf("unlocking the terminal: %w", err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, nil, fmt.Errorf("finding the terminal's name: %w", err)
	}
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	return master, slave, control(slave, raw)
}

func control(f *os.File, act func(fd int) error) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = c.Control(func(fd uintptr) { inner = act(int(fd)) })
	return errors.Join(err, inner)
}

func raw(fd int) error {
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return err
	}
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	return unix.IoctlSetTermios(fd, unix.TCSETS, t)
}
