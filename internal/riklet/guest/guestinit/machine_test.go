package guestinit_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/guest/guestinit"
)

// stage is a Machine whose processes are simulated by the test. It records what the server
// requests of it.
type stage struct {
	// dial, startErr, usageErr and stopErr are set before the first session.
	dial                        func(port int32) (net.Conn, error)
	startErr, usageErr, stopErr error
	poweredOff                  chan struct{}

	mu      sync.Mutex
	started map[string]*process
	config  *guest.Config
	volumes []guest.Volume
	thawed  []guest.Identity
	stopped bool
}

var _ guestinit.Machine = &stage{}

func newStage() *stage {
	return &stage{started: map[string]*process{}, poweredOff: make(chan struct{})}
}

// process is a simulated process, controlled by the test.
type process struct {
	out  *os.File
	in   *os.File // nil without input
	tty  *os.File // the process's end of its terminal, or nil
	once sync.Once
	done chan struct{}
	code int

	mu      sync.Mutex
	signals []int
}

func (a *process) exit(code int) {
	a.once.Do(func() {
		a.code = code
		_ = a.out.Close()
		close(a.done)
	})
}

func (a *process) received() []int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]int{}, a.signals...)
}

// record runs f with the lock.
func (s *stage) record(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *stage) Configure(c guest.Config) error {
	s.record(func() { s.config = &c })
	return nil
}

func (s *stage) Files(v guest.Volume) error {
	s.record(func() { s.volumes = append(s.volumes, v) })
	return nil
}

func (s *stage) Thaw(i guest.Identity) error {
	s.record(func() { s.thawed = append(s.thawed, i) })
	return nil
}

func (s *stage) Start(p guest.Process, stdin bool) (*guestinit.Child, error) {
	if s.startErr != nil {
		return nil, s.startErr
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	a := &process{out: w, done: make(chan struct{})}
	child := &guestinit.Child{
		PID: 7, Stdout: r,
		Signal: func(signal int) error {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.signals = append(a.signals, signal)
			return nil
		},
		Kill: func() { a.exit(137) },
		Wait: func() guest.Exit { <-a.done; return guest.Exit{Code: a.code} },
	}
	if stdin {
		if a.in, child.Stdin, err = os.Pipe(); err != nil {
			return nil, err
		}
	}
	if p.TTY {
		if child.TTY, a.tty, err = openTerminal(); err != nil {
			return nil, err
		}
	}
	s.record(func() { s.started[strings.Join(append([]string{p.Container}, p.Argv...), " ")] = a })
	return child, nil
}

func (s *stage) Dial(_ context.Context, port int32) (net.Conn, error) { return s.dial(port) }

func (s *stage) Usage() (guest.Usage, error) {
	return guest.Usage{CPUNanos: 5, MemoryBytes: 6, Containers: map[string]guest.Memory{"main": {MemoryBytes: 7}}}, s.usageErr
}

func (s *stage) Stop() error {
	s.record(func() { s.stopped = true })
	return s.stopErr
}

func (s *stage) PowerOff() { close(s.poweredOff) }

func (s *stage) process(name string) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.started[name]
}

// dialPair is a dial function whose other end the test gets.
func dialPair() (dial func(int32) (net.Conn, error), server <-chan net.Conn) {
	accepted := make(chan net.Conn, 1)
	return func(port int32) (net.Conn, error) {
		if port != 80 {
			return nil, errors.New("connection refused")
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close()
		client, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			return nil, err
		}
		inside, err := listener.Accept()
		if err != nil {
			return nil, errors.Join(err, client.Close())
		}
		accepted <- inside
		return client, nil
	}, accepted
}

// openTerminal opens a terminal: the machine's end, and that of the process.
func openTerminal() (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	master = os.NewFile(uintptr(fd), "terminal")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, errors.Join(err, master.Close())
	}
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return nil, nil, errors.Join(errno, master.Close())
	}
	return master, os.NewFile(peer, "terminal"), nil
}
