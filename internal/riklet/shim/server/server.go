// Package server is the code of the supervisor process, cmd/rik-shim. Package shim documents its
// behavior.
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
	group  sync.WaitGroup // everything that Run waits for
	// connect connects to a guest.
	connect func(context.Context, guest.Channel) (session, error)

	mu         sync.Mutex // guards the fields below; not held across I/O
	containers map[string]*run
	peers      map[*peer]bool
	line       *line // nil if there is no link
	terminated bool  // whether it received SIGTERM
}

func newServer() *Server {
	return &Server{
		reaper: newReaper(), end: make(chan struct{}), connect: connectGuest,
		containers: map[string]*run{}, peers: map[*peer]bool{},
	}
}

// Run runs the supervisor until its end.
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
	s.disconnect()
	s.group.Wait()
	return err
}

// awaitTermination waits for SIGTERM. A machine that shuts down sends it to all remaining
// processes, and waits for those that stay: with systemd, for a minute and a half by default.
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

// leave ends a supervisor that has received SIGTERM once it is idle: no container runs, and no
// agent is connected that could start one.
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

// prepare sets up this process as the parent of containers.
func prepare(settings shim.Settings) error {
	// A terminal that hangs up or a machine that shuts down must not end the containers before
	// they are stopped. Use a handler instead of SIG_IGN, because children inherit the latter.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGPIPE)
	if err := signals.Restore(); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("becoming a child subreaper: %w", err)
	}
	// Killing the supervisor would free only 4 MB and lose the Pod, so it must be killed last.
	// Some sandboxes do not allow this setting; it is not essential.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-999"), 0)
	if settings.Hostname != "" {
		if err := unix.Sethostname([]byte(settings.Hostname)); err != nil {
			return fmt.Errorf("setting the host name: %w", err)
		}
	}
	if settings.Loopback {
		if err := os.WriteFile(lowestPort, []byte("0"), 0); err != nil {
			return fmt.Errorf("allowing low ports for all users: %w", err)
		}
		return loopbackUp()
	}
	return nil
}

// lowestPort sets the lowest port in the network namespace on which programs without
// CAP_NET_BIND_SERVICE may listen. An instance has only its own ports, so none need protection;
// containerd and Docker do the same. The namespace of the node is never changed.
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
		return fmt.Errorf("setting the loopback interface up: %w", err)
	}
	return nil
}

// join moves the supervisor out of the agent's cgroups. The first migration after a while waits,
// under the kernel's lock of all cgroups, for two RCU grace periods (8 ms and more at 250 ticks
// a second). Migrations soon after it do not wait (cgroup_threadgroup_rwsem, a
// percpu_rw_semaphore). join runs early, so that this wait is over when runc moves the first
// container.
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
	mu   sync.Mutex // keeps messages from mixing
	enc  *json.Encoder
}

func (p *peer) send(m shim.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.enc.Encode(m) != nil {
		_ = p.conn.Close() // its reader then ends and removes it from the list
	}
}

// serve sends the greeting, then handles requests until the connection ends.
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
	p.mu.Lock() // the greeting must come before the first reported exit
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
	s.serveRequests(p)
}

func (s *Server) serveRequests(p *peer) {
	var group sync.WaitGroup
	defer group.Wait()
	dec := json.NewDecoder(p.conn)
	for {
		var r shim.Request
		if dec.Decode(&r) != nil {
			return
		}
		// Handle requests concurrently: a signal must not wait for a start.
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

// exitCodeOf returns the exit code for a StartError.
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

// signal sends a signal to a container. If the process has ended, it does nothing. A process
// that does not run yet cannot receive signals, but SIGKILL cancels its start.
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
		r.cancelStart(errStartCanceled)
		return nil
	}
	if !running {
		return nil
	}
	return r.live.signal(sig)
}

// send reports an exit to every peer.
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

func (s *Server) disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.peers {
		_ = p.conn.Close()
	}
}
