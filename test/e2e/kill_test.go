package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// kills is how often each component is killed.
const kills = 20

// TestPrivilegedKill kills each component repeatedly during a stream of creates and deletes. It
// checks from outside: no acknowledged object is lost, no instance runs twice, no container
// restarts because of a kill, and nothing is orphaned. The removal of the cluster also checks
// the last point.
func TestPrivilegedKill(t *testing.T) {
	privileged.Require(t)
	t.Parallel()
	for _, component := range []string{"riklet", "scheduler", "controller", "server"} {
		t.Run(component, func(t *testing.T) {
			if !rikcluster.Alone(t) {
				return
			}
			c := rikcluster.Start(t, rikcluster.Options{Split: component != "server"})
			killRounds(t, c, component)
		})
	}
}

func killRounds(t *testing.T, c *rikcluster.Cluster, component string) {
	t.Helper()
	image := c.Busybox()
	// With exec, the container's process has the name that the test searches for.
	script := "exec sleep 100000"
	for _, name := range []string{"steady", "stream"} {
		if out := c.RikctlInput(rikcluster.Manifest(name, image, script, ""), "apply", "-f", "-"); out.Err != nil {
			t.Fatal(out.Err)
		}
	}
	c.Rikctl("create", "instance", "-w", "steady", "--replicas", "4")
	c.Rikctl("wait", "--for=condition=Ready", "instance", "-l", "rik.dev/workload=steady", "--timeout=120s")
	before := steady(t, c)

	s := newStream(t, c)
	for round := range kills {
		if round%2 == 0 {
			s.goesRound()
		}
		s.whileBusy(func() { c.Process(component).Kill() })
		c.Restart(component)
		s.flows()
		if err := compare(before, c.InstanceProcesses("sleep")); err != nil {
			t.Fatalf("after kill %d of %s: %v", round+1, component, err)
		}
	}
	s.stop()
	converge(t, c, s)
	if err := compare(before, c.InstanceProcesses("sleep")); err != nil {
		t.Fatalf("after all kills of %s: %v", component, err)
	}
	t.Logf("%d kills of %s: %d creates and %d deletes acknowledged", kills, component, len(s.created), len(s.deleted))
}

// steady returns the processes of the instances that must not be affected.
func steady(t *testing.T, c *rikcluster.Cluster) map[string][]rikcluster.Inside {
	t.Helper()
	var list rikv1alpha1.InstanceList
	c.Get(&list, "namespaces/default/instances?labelSelector=rik.dev/workload=steady")
	found := map[string][]rikcluster.Inside{}
	// An instance is running as soon as its shell is, which then becomes the program that the
	// test searches for.
	rikcluster.Eventually(t, time.Minute, func() error {
		clear(found)
		running := c.InstanceProcesses("sleep")
		for i := range list.Items {
			uid := string(list.Items[i].UID)
			if len(running[uid]) != 1 {
				return fmt.Errorf("instance %s has processes %v, want one", list.Items[i].Name, running[uid])
			}
			found[uid] = running[uid]
		}
		return nil
	})
	if len(found) != 4 {
		t.Fatalf("found %d steady instances, want 4", len(found))
	}
	return found
}

// compare checks that each process is still the same, and that no instance has two.
func compare(before, now map[string][]rikcluster.Inside) error {
	for uid, was := range before {
		if !slices.Equal(was, now[uid]) {
			return fmt.Errorf("instance %s ran as %v, now as %v", uid, was, now[uid])
		}
	}
	for uid, processes := range now {
		if len(processes) > 1 {
			return fmt.Errorf("instance %s runs more than once: %v", uid, processes)
		}
	}
	return nil
}

// stream creates and deletes instances as fast as the command line allows, and records what was
// acknowledged.
type stream struct {
	t      *testing.T
	c      *rikcluster.Cluster
	cancel context.CancelFunc
	done   sync.WaitGroup
	acted  chan struct{}

	mu      sync.Mutex
	created map[string]bool // names whose creation was acknowledged
	deleted map[string]bool // of these, those whose deletion was
	maybe   map[string]bool // deletions without acknowledgment: both outcomes are correct
	next    int
}

func newStream(t *testing.T, c *rikcluster.Cluster) *stream {
	ctx, cancel := context.WithCancel(t.Context())
	s := &stream{t: t, c: c, cancel: cancel, acted: make(chan struct{}, 1),
		created: map[string]bool{}, deleted: map[string]bool{}, maybe: map[string]bool{}}
	t.Cleanup(s.stop)
	s.done.Add(1)
	go func() {
		defer s.done.Done()
		for ctx.Err() == nil {
			s.awaitServer(ctx)
			s.create()
			s.delete()
			select {
			case s.acted <- struct{}{}:
			default:
			}
		}
	}()
	return s
}

func (s *stream) stop() {
	s.cancel()
	s.done.Wait()
}

// goesRound discards the last signal of the stream, so that the next kill happens during a
// create. Otherwise it would mostly happen during a delete, because the test waits for creates,
// and hardly any delete would be acknowledged.
func (s *stream) goesRound() {
	select {
	case <-s.acted:
	default:
	}
}

// whileBusy calls kill while the stream is active.
func (s *stream) whileBusy(kill func()) {
	<-s.acted
	kill()
}

// flows waits until another create was acknowledged.
func (s *stream) flows() {
	s.t.Helper()
	count := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.created)
	}
	before := count()
	s.c.Eventually(func() error {
		if count() == before {
			return errors.New("no create was acknowledged since the kill")
		}
		return nil
	})
}

// awaitServer waits while no server listens. A command line that cannot connect would only use
// CPU time.
func (s *stream) awaitServer(ctx context.Context) {
	for ctx.Err() == nil {
		conn, err := net.Dial("tcp", "127.0.0.1:5000")
		if err == nil {
			_ = conn.Close()
			return
		}
		pause(ctx, 5*time.Millisecond)
	}
}

func (s *stream) create() {
	s.mu.Lock()
	s.next++
	name := fmt.Sprintf("stream-%d", s.next)
	s.mu.Unlock()
	out := s.c.TryRikctl("create", "instance", "-w", "stream", "--name", name)
	if out.Err != nil {
		return // not acknowledged: it may exist or not
	}
	s.mu.Lock()
	s.created[name] = true
	s.mu.Unlock()
}

// delete deletes the oldest instance once there are more than five.
func (s *stream) delete() {
	s.mu.Lock()
	var alive []string
	for _, name := range slices.Sorted(maps.Keys(s.created)) {
		if !s.deleted[name] && !s.maybe[name] {
			alive = append(alive, name)
		}
	}
	s.mu.Unlock()
	if len(alive) <= 5 {
		return
	}
	out := s.c.TryRikctl("delete", "instance", alive[0], "--wait=false")
	s.mu.Lock()
	defer s.mu.Unlock()
	if out.Err == nil {
		s.deleted[alive[0]] = true
	} else {
		s.maybe[alive[0]] = true
	}
}

// converge waits until the API, the acknowledged objects and the running processes agree.
func converge(t *testing.T, c *rikcluster.Cluster, s *stream) {
	t.Helper()
	c.Eventually(func() error {
		var list rikv1alpha1.InstanceList
		if err := c.TryGet(&list, "namespaces/default/instances"); err != nil {
			return err
		}
		exists := map[string]rikv1alpha1.Instance{}
		for i := range list.Items {
			exists[list.Items[i].Name] = list.Items[i]
		}
		return s.agrees(exists, c.InstanceProcesses("sleep"))
	})
}

func (s *stream) agrees(exists map[string]rikv1alpha1.Instance, running map[string][]rikcluster.Inside) error {
	for name := range s.created {
		in, ok := exists[name]
		switch {
		case s.maybe[name]:
		case s.deleted[name] && ok:
			return fmt.Errorf("%s was deleted and is still there (%s)", name, in.Status.Phase)
		case !s.deleted[name] && !ok:
			s.t.Fatalf("the acknowledged instance %s is lost", name)
		}
	}
	byUID := map[string]string{}
	for name, in := range exists {
		byUID[string(in.UID)] = name
		if in.Status.Phase != rikv1alpha1.InstanceRunning {
			return fmt.Errorf("%s is %s: %s", name, in.Status.Phase, in.Status.Message)
		}
		if strings.HasPrefix(name, "stream-") && len(running[string(in.UID)]) != 1 {
			return fmt.Errorf("%s has processes %v, want one", name, running[string(in.UID)])
		}
	}
	for uid, processes := range running {
		if byUID[uid] == "" {
			return fmt.Errorf("processes %v belong to instance %s, which does not exist", processes, uid)
		}
	}
	return nil
}
