package instancefake

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
)

// run recovers and runs the driver. The returned function ends it.
func run(t *testing.T, d *Driver) (stop func()) {
	t.Helper()
	if err := d.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	}
}

func phase(d *Driver, uid string) rikv1alpha1.InstancePhase {
	for _, o := range d.Observations() {
		if o.UID == uid {
			return o.Status.Phase
		}
	}
	return ""
}

func TestLifecycleOfAnInstance(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		host := NewHost()
		d := host.Driver(Config{StopTakes: time.Hour})
		defer run(t, d)()
		for range 2 {
			if err := d.Ensure(instance.Instance{UID: "a"}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if got := phase(d, "a"); got != rikv1alpha1.InstanceRunning || host.Starts("a") != 1 {
			t.Errorf("phase %s after %d starts, want Running after one", got, host.Starts("a"))
		}
		d.Stop("a", 10*time.Second)
		synctest.Wait()
		if got := phase(d, "a"); got != rikv1alpha1.InstanceDestroying {
			t.Errorf("phase %s within the grace, want Destroying", got)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := phase(d, "a"); got != rikv1alpha1.InstanceTerminated || len(host.Running()) != 0 {
			t.Errorf("phase %s after the grace, running %v, want Terminated and nothing", got, host.Running())
		}
		if err := d.Ensure(instance.Instance{UID: "a"}); err != nil || len(d.List()) != 0 {
			t.Errorf("Ensure() of an ended instance = %v, list %v, want nothing", err, d.List())
		}
		d.Forget("a")
		if got := d.Observations(); len(got) != 0 {
			t.Errorf("observations %v after Forget, want none", got)
		}
	})
}

func TestStopOfAnUnknownInstanceIsConfirmed(t *testing.T) {
	t.Parallel()
	changed := 0
	d := NewHost().Driver(Config{Changed: func() { changed++ }})
	d.Stop("x", 0)
	if phase(d, "x") != rikv1alpha1.InstanceTerminated || changed != 1 {
		t.Errorf("phase %s, changed %d times, want Terminated once", phase(d, "x"), changed)
	}
}

func TestProcessesSurviveTheDriver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		host := NewHost()
		first := host.Driver(Config{})
		stop := run(t, first)
		if err := first.Ensure(instance.Instance{UID: "a"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		stop()
		second := host.Driver(Config{})
		defer run(t, second)()
		if diff := cmp.Diff([]string{"a"}, second.List()); diff != "" || host.Starts("a") != 1 {
			t.Errorf("started %d times (-want +got):\n%s", host.Starts("a"), diff)
		}
		second.Stop("a", 0)
		synctest.Wait()
		if len(host.Running()) != 0 {
			t.Error("the second driver did not stop what the first started")
		}
	})
}

func TestFailedStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := NewHost().Driver(Config{Start: func(context.Context, instance.Instance) error { return errors.New("no such image") }})
		defer run(t, d)()
		if err := d.Ensure(instance.Instance{UID: "a"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := phase(d, "a"); got != rikv1alpha1.InstanceFailed {
			t.Errorf("phase %s, want Failed", got)
		}
	})
}

func TestLogsAndExec(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		host := NewHost()
		d := host.Driver(Config{})
		defer run(t, d)()
		if err := d.Ensure(instance.Instance{UID: "a"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		host.Print("a", "one")
		host.Print("a", "two")
		var out strings.Builder
		tail := int64(1)
		if err := d.Logs(t.Context(), "a", "", instance.LogOptions{TailLines: &tail}, &out); err != nil || out.String() != "two\n" {
			t.Errorf("Logs() wrote %q, %v, want the last line", out.String(), err)
		}
		out.Reset()
		code, err := d.Exec(t.Context(), "a", "", instance.ExecOptions{Command: []string{"cat"}, Stdin: strings.NewReader("in"), Stdout: &out})
		if code != 0 || err != nil || out.String() != "in" {
			t.Errorf("Exec(cat) = %d, %v with %q", code, err, out.String())
		}
		if _, err := d.Exec(t.Context(), "b", "", instance.ExecOptions{Command: []string{"cat"}}); !errors.Is(err, instance.ErrUnknown) {
			t.Errorf("Exec() in an unknown instance = %v, want ErrUnknown", err)
		}
		d.Exit("a", 3)
		if _, err := d.Exec(t.Context(), "a", "", instance.ExecOptions{Command: []string{"cat"}}); !errors.Is(err, instance.ErrNotRunning) {
			t.Errorf("Exec() in an ended instance = %v, want ErrNotRunning", err)
		}
	})
}
