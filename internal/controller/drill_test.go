package controller_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"rik.dev/rik/internal/controller"
	"rik.dev/rik/internal/testkit/apiprocess"
)

// envRounds is the number of times that a controller is stopped, 1 by default. A round takes
// about 20 s.
const envRounds = "RIK_DRILL_ROUNDS"

// child is a controller process of the drill.
type child struct {
	cmd *exec.Cmd

	mu     sync.Mutex
	active int64 // its term; 0 while it is not active
}

func (c *child) term() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.active
}

func (c *child) follow(lines *bufio.Scanner) {
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		number, _ := strconv.ParseInt(rest, 10, 64)
		c.mu.Lock()
		switch word {
		case "active":
			c.active = number
		case "passive":
			c.active = 0
		}
		c.mu.Unlock()
	}
}

func startChild(t *testing.T, config, namespace string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0]) //nolint:noctx // this test, as a controller; it is ended by signal
	cmd.Env = append(os.Environ(), controller.EnvDrillConfig+"="+config, controller.EnvDrillNamespace+"="+namespace)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: cmd}
	done := make(chan struct{})
	go func() { defer close(done); c.follow(bufio.NewScanner(out)) }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = cmd.Process.Kill()
		<-done
		_ = cmd.Wait()
	})
	return c
}

// TestAStoppedControllerWritesNothingMore: the active of two controllers is stopped until after
// its lease has ended. It continues after the other has taken over. Each writes as fast as it
// can and does not stop by itself. No write of an older term may follow a write of a newer one.
func TestAStoppedControllerWritesNothingMore(t *testing.T) {
	rounds := 1
	if text := os.Getenv(envRounds); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", envRounds, err)
		}
	}
	// There is only one Lease, so the tests of this package that start a controller run one after
	// the other.
	api := apiprocess.Shared(t)
	namespace := api.Namespace(t)
	clients, err := kubernetes.NewForConfig(asController(api.Config))
	if err != nil {
		t.Fatal(err)
	}
	maps := clients.CoreV1().ConfigMaps(namespace)
	made, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: controller.DrillObject}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h := history{t: t}
	watching, stop := context.WithCancel(t.Context())
	defer stop()
	events, err := maps.Watch(watching, metav1.ListOptions{ResourceVersion: made.ResourceVersion, FieldSelector: "metadata.name=" + controller.DrillObject})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	go func() {
		for e := range events.ResultChan() {
			if o, ok := e.Object.(*corev1.ConfigMap); ok {
				h.note(o)
			}
		}
	}()
	config := filepath.Join(api.DataDir, "admin.kubeconfig")
	children := []*child{startChild(t, config, namespace), startChild(t, config, namespace)}
	for round := range rounds {
		first := await(t, "a controller is active and writes", func() *child {
			for _, c := range children {
				if n := c.term(); n > 0 && h.last() == n {
					return c
				}
			}
			return nil
		})
		old := h.last()
		if err := first.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		await(t, "the other one takes over and writes", func() *int64 {
			if n := h.last(); n > old {
				return &n
			}
			return nil
		})
		writes := h.count()
		if err := first.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		await(t, "the first one notices, and the other goes on", func() *int {
			if n := h.count(); n > writes+50 && first.term() != old {
				return &n
			}
			return nil
		})
		if t.Failed() {
			t.Fatalf("in round %d of %d", round+1, rounds)
		}
	}
	t.Logf("%d rounds, %d writes", rounds, h.count())
}

// history is the sequence of the object's states.
type history struct {
	t *testing.T

	mu   sync.Mutex
	term int64
	n    int
}

func (h *history) note(o *corev1.ConfigMap) {
	number, err := strconv.ParseInt(o.Data["term"], 10, 64)
	if err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n++
	if number < h.term {
		h.t.Errorf("a write of term %d came after one of term %d", number, h.term)
		return
	}
	h.term = number
}

func (h *history) last() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.term
}

func (h *history) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n
}

func await[T any](t *testing.T, what string, look func() *T) *T {
	t.Helper()
	deadline := time.Now().Add(3 * time.Minute)
	for time.Now().Before(deadline) {
		if found := look(); found != nil {
			return found
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatal(fmt.Sprint("still not so: ", what))
	return nil
}
