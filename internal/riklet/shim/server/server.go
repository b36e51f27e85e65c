// Package server is the inside of the supervisor process, cmd/rik-shim. See
// package shim for what it promises.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/shim"
	"rik.dev/rik/internal/riklet/shim/launch"
	"rik.dev/rik/internal/riklet/signals"
)

// Server is the supervisor of one Pod.
type Server struct {
	reaper *reaper
	end    chan struct{}
	once   sync.Once
	group  sync.WaitGroup // all that Run waits for
	// connect reaches a guest.
	connect func(context.Context, guest.Channel) (session, error)

	mu         sync.Mutex // guards what follows; not held across I/O
	containers map[string]*run
	peers      map[*peer]bool
	line       *line // nil while no guest is wanted
	terminated bool  // it was sent SIGTERM
}

func newServer() *Server {
	return &Server{
		reaper: newReaper(), end: make(chan struct{}), connect: connectGuest,
		containers: map[string]*run{}, peers: map[*peer]bool{},
	}
}

// Run is the whole life of the supervisor process.
func Run(settings shim.Settings, listener *net.UnixListener) error {
	s := newServer()
	if err := prepare(settings); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.group.Go(func() { s.reaper.run(ctx) })
	s.group.Go(func() { join(settings.Cgroups) })
	s.group.Go(func() { s.accept(listener) })
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)
	s.group.Go(func() { s.awaitTermination(terminate) })
	<-s.end
	cancel()
	err := listener.Close()
	s.hangUp()
	s.group.Wait()
	return err
}

// awaitTermination notes a SIGTERM. A machine that shuts down sends it to all that are
// left, and waits for those that stay: by systemd's default for a minute and a half.
func (s *Server) awaitTermination(terminate <-chan os.Signal) {
	select {
	case <-terminate:
		s.mu.Lock()
		s.terminated = true
		s.mu.Unlock()
		s.leave()
	case <-s.end:
	}
}

// leave ends a supervisor that was sent SIGTERM once it has nothing to do: no container
// runs, and no agent is there that may start one.
func (s *Server) leave() {
	s.mu.Lock()
	idle := s.terminated && len(s.peers) == 0 && !s.busyLocked()
	s.mu.Unlock()
	if idle {
		s.finish()
	}
}

// finish ends Run.
func (s *Server) finish() { s.once.Do(func() { close(s.end) }) }

// prepare makes this process what containers expect of their parent.
func prepare(settings shim.Settings) error {
	// A terminal that hangs up or a machine that shuts down must not end the
	// containers before their own turn. A handler, not SIG_IGN: a child would
	// inherit the latter.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGPIPE)
	if err := signals.Restore(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming the parent of orphans: %w", err)
	}
	// Killing the supervisor frees 4 MB and loses the Pod: last of all. Not
	// allowed inside some sandboxes, and then not essential.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-999"), 0)
	if settings.Hostname != "" {
		if err := unix.Sethostname([]byte(settings.Hostname)); err != nil {
			return fmt.Errorf("setting the host name: %w", err)
		}
	}
	if settings.Loopback {
		if err := os.WriteFile(lowestPort, []byte("0"), 0); err != nil {
			return fmt.Errorf("letting every user listen on low ports: %w", err)
		}
		return loopbackUp()
	}
	return nil
}

// lowestPort is the lowest port of the network namespace that programs without
// CAP_NET_BIND_SERVICE may listen on: an instance has no ports but its own to protect, and
// containerd and Docker set the same. The namespace of the node is never touched.
// https://www.kernel.org/doc/html/latest/networking/ip-sysctl.html
const lowestPort = "/proc/sys/net/ipv4/ip_unprivileged_port_start"

// loopbackUp brings up "lo", which is down in a new network namespace.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("bringing the loopback interface up: %w", err)
	}
	return nil
}

// join leaves the agent's cgroups. The first migration after a while waits, under the
// kernel's lock of all of them, for the end of an RCU grace period and for one more (8 ms
// and more at 250 ticks a second); those soon after it do not wait (cgroup_threadgroup_rwsem,
// a percpu_rw_semaphore). Done at once, it is over when runc moves the first container.
func join(procs []string) {
	for _, file := range procs {
		if err := os.WriteFile(file, []byte("0"), 0); err != nil {
			fmt.Fprintf(os.Stderr, "joining a cgroup: %v\n", err)
		}
	}
}

func (s *Server) accept(listener *net.UnixListener) {
	var group sync.WaitGroup
	defer group.Wait()
	for {
		conn, err := listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "accepting a connection: %v\n", err)
			continue
		}
		group.Go(func() { s.serve(&peer{conn: conn, enc: json.NewEncoder(conn)}) })
	}
}

// peer is one connection.
type peer struct {
	conn *net.UnixConn
	mu   sync.Mutex // keeps messages whole
	enc  *json.Encoder
}

func (p *peer) send(m shim.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.enc.Encode(m) != nil {
		_ = p.conn.Close() // its reader ends and takes it off the list
	}
}

// serve greets, then obeys until the connection ends.
func (s *Server) serve(p *peer) {
	defer p.conn.Close()
	s.mu.Lock()
	hello := shim.Hello{PID: os.Getpid()}
	for _, r := range s.containers {
		c := r.Container
		c.Starting = r.live == nil
		hello.Containers = append(hello.Containers, c)
	}
	s.peers[p] = true
	p.mu.Lock() // the greeting comes before any end that is told from now on
	s.mu.Unlock()
	err := p.enc.Encode(shim.Message{Hello: &hello})
	p.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.peers, p)
		s.mu.Unlock()
		s.leave()
	}()
	if err != nil {
		return
	}
	s.obey(p)
}

func (s *Server) obey(p *peer) {
	var group sync.WaitGroup
	defer group.Wait()
	dec := json.NewDecoder(p.conn)
	for {
		var r shim.Request
		if dec.Decode(&r) != nil {
			return
		}
		// Side by side: a signal must not wait for a start.
		group.Go(func() {
			m := s.handle(r)
			m.ID = r.ID
			p.send(m)
			if r.Op == shim.OpShutdown && !m.Busy {
				s.finish()
			}
		})
	}
}

func (s *Server) handle(r shim.Request) shim.Message {
	var err error
	switch {
	case r.Op == shim.OpStart && r.Start != nil:
		var c shim.Container
		if c, err = s.start(*r.Start); err == nil {
			return shim.Message{Container: &c}
		}
	case r.Op == shim.OpSignal:
		err = s.signal(r.Container, syscall.Signal(r.Signal))
	case r.Op == shim.OpLink && r.Link != nil:
		err = s.link(*r.Link)
	case r.Op == shim.OpShutdown:
		return shim.Message{Busy: s.busy()}
	default:
		err = fmt.Errorf("unknown operation %q", r.Op)
	}
	if err != nil {
		return shim.Message{Error: err.Error(), ExitCode: exitCodeOf(err)}
	}
	return shim.Message{}
}

// exitCodeOf is a StartError's.
func exitCodeOf(err error) int {
	var f *launch.Failure
	switch {
	case errors.As(err, &f) && f.Code != launch.CodeFailed:
		return f.Code
	case errors.Is(err, guest.ErrNoProgram):
		return launch.CodeNotFound
	case errors.Is(err, guest.ErrNotRunnable):
		return launch.CodeNotRunnable
	}
	return 0
}

func (s *Server) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.busyLocked()
}

func (s *Server) busyLocked() bool {
	for _, r := range s.containers {
		if !r.Exited {
			return true
		}
	}
	return false
}

// signal passes a signal on; what has ended meanwhile ignores it. What does not run yet
// has nothing to hear it, but SIGKILL ends its start.
func (s *Server) signal(name string, sig syscall.Signal) error {
	s.mu.Lock()
	r := s.containers[name]
	launching := r != nil && r.live == nil
	running := r != nil && r.live != nil && !r.Exited
	s.mu.Unlock()
	if r == nil {
		return fmt.Errorf("no container %q", name)
	}
	if launching && sig == syscall.SIGKILL {
		r.callOff(errCalledOff)
		return nil
	}
	if !running {
		return nil
	}
	return r.live.signal(sig)
}

// send tells every peer of an end.
func (s *Server) send(c shim.Container) {
	s.mu.Lock()
	peers := make([]*peer, 0, len(s.peers))
	for p := range s.peers {
		peers = append(peers, p)
	}
	s.mu.Unlock()
	for _, p := range peers {
		p.send(shim.Message{Container: &c})
	}
}

func (s *Server) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.peers {
		_ = p.conn.Close()
	}
}
