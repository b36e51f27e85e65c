package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"rik.dev/rik/internal/apiserver/datastore/etcd/peer"
	"rik.dev/rik/internal/apiserver/datastore/members"
	"rik.dev/rik/internal/pki"
)

// roster is a list of servers in memory.
type roster struct {
	mu      sync.Mutex
	entries []Entry
	waiting []members.Waiting
}

func (r *roster) Entries(context.Context) ([]Entry, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.entries), nil
}

func (r *roster) Removed(_ context.Context, server string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries = slices.DeleteFunc(r.entries, func(e Entry) bool { return e.Server == server })
	return nil
}

func (r *roster) Waiting(w []members.Waiting) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w != nil {
		r.waiting = w
	}
}

func (r *roster) change(f func(entries []Entry) []Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries = f(r.entries)
}

// trio is a cluster of servers in this process.
type trio struct {
	t         *testing.T
	authority *pki.Authority
	roster    *roster
	dirs      map[string]string
	address   map[string]string
	running   map[string]*Server
	stop      map[string]func()
	validity  time.Duration
	only      bool
}

func newTrio(t *testing.T) *trio {
	t.Helper()
	authority, err := pki.LoadOrCreate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := &trio{t: t, authority: authority, roster: &roster{}, dirs: map[string]string{}, address: map[string]string{}, running: map[string]*Server{}, stop: map[string]func(){}}
	t.Cleanup(func() {
		for name := range c.running {
			c.end(name)
		}
	})
	return c
}

// freeAddress returns an address on loopback that was free just now.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (c *trio) several(name string, join []string) *Several {
	if c.address[name] == "" {
		c.address[name] = freeAddress(c.t)
	}
	return &Several{Server: name, Authority: c.authority, Bind: "127.0.0.1", Address: c.address[name], Join: join, Validity: c.validity, Only: c.only}
}

// try starts a server.
func (c *trio) try(name string, join []string) error {
	c.t.Helper()
	if c.dirs[name] == "" {
		c.dirs[name] = c.t.TempDir()
	}
	sockets, err := os.MkdirTemp("", "rik-etcd-")
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = os.RemoveAll(sockets) })
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	s, err := Start(ctx, Config{Dir: c.dirs[name], SocketDir: sockets, Several: c.several(name, join), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	keeping, stop := context.WithCancel(context.WithoutCancel(c.t.Context()))
	var group sync.WaitGroup
	group.Go(func() { _ = s.KeepMembers(keeping, c.roster) })
	c.running[name] = s
	c.stop[name] = func() { stop(); group.Wait() }
	return nil
}

func (c *trio) start(name string, join []string) *Server {
	c.t.Helper()
	if err := c.try(name, join); err != nil {
		c.t.Fatalf("starting %s: %v", name, err)
	}
	return c.running[name]
}

func (c *trio) end(name string) {
	c.stop[name]()
	if err := c.running[name].Close(); err != nil {
		c.t.Errorf("closing %s: %v", name, err)
	}
	delete(c.running, name)
}

// join adds a server through the roster, as a running server does for it.
func (c *trio) join(name, through string) *Server {
	c.t.Helper()
	first := c.running[through]
	if err := first.OpenToOthers(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	several := c.several(name, first.PeerURLs())
	c.roster.change(func(e []Entry) []Entry { return append(e, Entry{Server: name, Peer: several.URL()}) })
	s := c.start(name, several.Join)
	c.roster.change(func(e []Entry) []Entry {
		i := slices.IndexFunc(e, func(e Entry) bool { return e.Server == name })
		e[i].Member = s.Member()
		return e
	})
	return s
}

func (c *trio) first() *Server {
	s := c.start("s1", nil)
	c.roster.change(func(e []Entry) []Entry { return append(e, Entry{Server: "s1", Peer: s.Peer(), Member: s.Member()}) })
	return s
}

func (c *trio) remove(name string) {
	c.roster.change(func(e []Entry) []Entry {
		e[slices.IndexFunc(e, func(e Entry) bool { return e.Server == name })].Removed = true
		return e
	})
}

// eventually waits for a condition, and fails with what it last said.
func (c *trio) eventually(what string, is func() (string, bool)) {
	c.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		said, ok := is()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s: %s; waiting: %+v", what, said, c.roster.waiting)
		}
		<-time.After(50 * time.Millisecond)
	}
}

func (c *trio) awaitMembers(of string, want int) {
	c.t.Helper()
	c.eventually(fmt.Sprintf("waiting for %d members", want), func() (string, bool) {
		m := c.running[of].state(0).Members
		return fmt.Sprintf("%+v", m), len(m) == want
	})
}

func (c *trio) client(name string) *clientv3.Client {
	c.t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{c.running[name].Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = client.Close() })
	return client
}

// put writes through one server, and tries again while a leader is elected.
func (c *trio) put(name, key, value string) {
	c.t.Helper()
	client := c.client(name)
	c.eventually("writing through "+name, func() (string, bool) {
		ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Second)
		defer cancel()
		_, err := client.Put(ctx, key, value)
		return fmt.Sprint(err), err == nil
	})
}

func (c *trio) get(name, key string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Second)
	defer cancel()
	answer, err := c.client(name).Get(ctx, key)
	if err != nil || len(answer.Kvs) != 1 {
		c.t.Fatalf("reading %s through %s = %v, %v", key, name, answer, err)
	}
	return string(answer.Kvs[0].Value)
}

// TestServersJoinOneThatWasAlone adds two servers to a single one, which listens on TCP only then.
// It loses each server in turn, goes down to one server, and up again.
func TestServersJoinOneThatWasAlone(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	c.first()
	if c.running["s1"].cluster.port != nil || c.running["s1"].IsSeveral() {
		t.Error("a single server has a port for others")
	}
	c.put("s1", "a", "1")
	c.join("s2", "s1")
	c.join("s3", "s2")
	c.awaitMembers("s1", 3)
	for _, lost := range []string{"s1", "s2", "s3"} {
		c.end(lost)
		for name := range c.running {
			c.put(name, "while-lost", lost+" "+name)
		}
		c.start(lost, nil)
		c.put(lost, "returned", lost)
		if got := c.get(lost, "a"); got != "1" {
			t.Errorf("after the return of %s, a = %q", lost, got)
		}
	}
	// A dead server is replaced: removed first, then a new one joins under its name.
	c.end("s3")
	c.remove("s3")
	c.awaitMembers("s1", 2)
	c.remove("s1") // possibly the leader
	c.awaitMembers("s2", 1)
	c.put("s2", "alone", "yes")
	// A removed member answers with an error until it has stopped, and does not crash.
	if status, err := c.client("s1").Status(t.Context(), c.running["s1"].Endpoint()); err == nil {
		t.Errorf("a removed member answers %v", status)
	}
	select {
	case err := <-c.running["s1"].Err():
		if !errors.Is(err, ErrRemoved) || !strings.Contains(err.Error(), "--join") {
			t.Errorf("the removed server ended with %v, want ErrRemoved and --join", err)
		}
	case <-time.After(time.Minute):
		t.Error("the removed server goes on")
	}
	c.end("s1")
	for _, removed := range []string{"s1", "s3"} {
		if err := c.try(removed, nil); !errors.Is(err, ErrRemoved) {
			t.Errorf("starting the removed server %s = %v, want ErrRemoved", removed, err)
		}
	}
	c.join("s3", "s2")
	c.join("s1", "s2")
	c.awaitMembers("s2", 3)
	for name := range c.running {
		if got := c.get(name, "alone"); got != "yes" {
			t.Errorf("alone on %s = %q", name, got)
		}
	}
	if _, err := os.Stat(filepath.Join(c.dirs["s1"], "etcd"+removedSuffix)); err != nil {
		t.Errorf("the data of a removed member is not kept: %v", err)
	}
}

// TestAServerThatDoesNotAnswerIsNotAdded adds no server whose address does not answer, so that the cluster
// stays as it is.
func TestAServerThatDoesNotAnswerIsNotAdded(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	s := c.first()
	if err := s.OpenToOthers(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.roster.change(func(e []Entry) []Entry { return append(e, Entry{Server: "ghost", Peer: "https://" + freeAddress(t)}) })
	c.eventually("waiting for the reason", func() (string, bool) {
		c.roster.mu.Lock()
		defer c.roster.mu.Unlock()
		return fmt.Sprint(c.roster.waiting), len(c.roster.waiting) == 1 && strings.Contains(c.roster.waiting[0].Reason, "does not answer")
	})
	if m := s.state(0).Members; len(m) != 1 {
		t.Errorf("members = %+v, want one", m)
	}
}

// TestAWriteToALostLeaderEnds stops the leader while writes run through the other servers. Each write
// that fails says that the leader was lost, and later ones succeed. No acknowledged write is lost.
func TestAWriteToALostLeaderEnds(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	c.first()
	c.join("s2", "s1")
	c.join("s3", "s1")
	c.eventually("waiting for votes", func() (string, bool) {
		for _, m := range c.running["s1"].state(0).Members {
			if m.Learner {
				return fmt.Sprintf("%+v", m), false
			}
		}
		return "", len(c.running["s1"].state(0).Members) == 3
	})
	leader := ""
	c.eventually("waiting for a leader", func() (string, bool) {
		for name, s := range c.running {
			if s.IsLeader() {
				leader = name
			}
		}
		return "none", leader != ""
	})
	follower := "s1"
	if leader == follower {
		follower = "s2"
	}
	client := c.client(follower)
	// The leader hears of nothing any more, as after a power failure.
	_ = c.running[leader].cluster.port.Close()
	c.running[leader].etcd.Server.PauseSending()
	defer c.running[leader].etcd.Server.ResumeSending()
	written := map[string]bool{}
	c.eventually("writing after the loss", func() (string, bool) {
		key := fmt.Sprintf("k%d", len(written))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err := client.Put(ctx, key, "v")
		if errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a write did not end: %v", err)
		}
		written[key] = err == nil
		return fmt.Sprint(err), err == nil
	})
	for key, acknowledged := range written {
		if acknowledged && c.get(follower, key) != "v" {
			t.Errorf("%s is lost", key)
		}
	}
}

// TestTheOnlyServerThatIsLeft loses two of three servers. The third one does not write, until it is
// started as the only one. Then the size of the majority is one, the others do not return with their
// data, and can join again.
func TestTheOnlyServerThatIsLeft(t *testing.T) {
	t.Parallel()
	c := newTrio(t)
	c.first()
	c.join("s2", "s1")
	c.join("s3", "s1")
	c.awaitMembers("s1", 3)
	c.eventually("waiting for votes", func() (string, bool) {
		m := c.running["s1"].state(0).Members
		return fmt.Sprintf("%+v", m), !slices.ContainsFunc(m, func(m peer.Member) bool { return m.Learner })
	})
	c.put("s1", "a", "1")
	c.end("s2")
	c.end("s3")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := c.client("s1").Put(ctx, "b", "1"); err == nil {
		t.Error("one of three servers writes")
	}
	c.end("s1")
	c.only = true
	c.start("s1", nil)
	c.only = false
	c.roster.change(func(e []Entry) []Entry {
		return slices.DeleteFunc(e, func(e Entry) bool { return e.Server != "s1" })
	})
	if m := c.running["s1"].state(0).Members; len(m) != 1 {
		t.Errorf("the members are %+v, want one", m)
	}
	c.put("s1", "b", "2")
	if got := c.get("s1", "a"); got != "1" {
		t.Errorf("a = %q", got)
	}
	if err := c.try("s2", nil); !errors.Is(err, ErrRemoved) {
		t.Errorf("starting a server that was given up = %v, want ErrRemoved", err)
	}
	c.end("s1")
	c.start("s1", nil) // without the flag
	c.join("s2", "s1")
	c.join("s3", "s1")
	c.awaitMembers("s1", 3)
	for name := range c.running {
		if got := c.get(name, "b"); got != "2" {
			t.Errorf("b on %s = %q", name, got)
		}
	}
}
