package vmmfake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"

	"rik.dev/rik/internal/riklet/guest/guestinit"
	"rik.dev/rik/internal/riklet/vmm"
)

// word is the first argument of a test's program that becomes the fake.
const word = "vmmfake"

// Main turns a test's program into the fake, if it was started as one, and then does not return.
func Main() {
	if len(os.Args) != 3 || os.Args[1] != word {
		return
	}
	if err := run(os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// double is the process of the fake.
type double struct {
	memory uint64
	server *guestinit.Server

	mu    sync.Mutex
	state vmm.State
	// running is closed while the guest runs. A pause replaces it by an open channel.
	running chan struct{}
}

func run(memory string) error {
	n, err := strconv.ParseUint(memory, 10, 64)
	if err != nil {
		return err
	}
	d := &double{memory: n, state: vmm.StateNotStarted, running: make(chan struct{})}
	d.server = guestinit.NewServer(host{}, func(format string, args ...any) { fmt.Printf(format+"\n", args...) })
	var listen net.ListenConfig
	channel, err := listen.Listen(context.Background(), "unix", guestSocket)
	if err != nil {
		return err
	}
	control, err := listen.Listen(context.Background(), "unix", controlSocket)
	if err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- accept(channel, d.guest) }()
	go func() { failed <- accept(control, func(c net.Conn) { go d.execute(c) }) }()
	return <-failed
}

func accept(l net.Listener, f func(net.Conn)) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		f(c)
	}
}

// guest serves one session at a time, like a serial port, while the guest runs.
func (d *double) guest(c net.Conn) {
	d.wait()
	if err := d.server.Serve(gated{c, d}); err != nil {
		fmt.Println("a session ended:", err)
	}
}

// wait waits until the guest runs.
func (d *double) wait() {
	d.mu.Lock()
	running := d.running
	d.mu.Unlock()
	<-running
}

// gated blocks reads and writes of a connection while the guest is paused.
type gated struct {
	net.Conn
	d *double
}

func (g gated) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	g.d.wait()
	return n, err
}

func (g gated) Write(p []byte) (int, error) {
	g.d.wait()
	return g.Conn.Write(p)
}

// execute answers one order.
func (d *double) execute(c net.Conn) {
	defer func() { _ = c.Close() }()
	var o order
	if err := json.NewDecoder(c).Decode(&o); err != nil {
		return
	}
	err := d.do(o.Do)
	d.mu.Lock()
	r := reply{State: d.state, Metrics: vmm.Metrics{MemoryBytes: d.memory}}
	d.mu.Unlock()
	if err != nil {
		r.Error = err.Error()
	}
	_ = json.NewEncoder(c).Encode(r)
	if o.Do == doShutdown && err == nil {
		host{}.PowerOff()
	}
}

func (d *double) do(what string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	started := d.state != vmm.StateNotStarted
	switch {
	case what == doState, what == doStart && started:
		return nil
	case what == doStart:
		d.state = vmm.StateRunning
		close(d.running)
		return nil
	case !started:
		return errors.New("the guest was not started")
	case what == doPause && d.state == vmm.StateRunning:
		d.state, d.running = vmm.StatePaused, make(chan struct{})
		return signalDescendants(syscall.SIGSTOP)
	case what == doResume && d.state == vmm.StatePaused:
		d.state = vmm.StateRunning
		close(d.running)
		return signalDescendants(syscall.SIGCONT)
	case what == doPause, what == doResume, what == doShutdown:
		return nil
	}
	return fmt.Errorf("no such order: %q", what)
}
