package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/instance/instancefake"
	"rik.dev/rik/internal/rpc/nodev1"
)

// controller is the other end. It grants credit only when a test does so.
type controller struct {
	t    *testing.T
	host *instancefake.Host
	mux  *Mux

	mu     sync.Mutex
	got    map[int64]map[nodev1.Channel]*bytes.Buffer
	last   map[int64]*nodev1.StreamData // the message with Closed set
	credit map[int64]int64              // granted by the node
	broken bool
}

// with runs f in a bubble with one running instance "a" of containers c1 and c2.
func with(t *testing.T, cfg instancefake.Config, f func(t *testing.T, c *controller)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &controller{
			t: t, host: instancefake.NewHost(), got: map[int64]map[nodev1.Channel]*bytes.Buffer{},
			last: map[int64]*nodev1.StreamData{}, credit: map[int64]int64{},
		}
		driver := c.host.Driver(cfg)
		if err := driver.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- driver.Run(ctx) }()
		in := instance.Instance{UID: "a"}
		in.Template.Containers = []rikv1alpha1.Container{{Name: "c1"}, {Name: "c2"}}
		if err := driver.Ensure(in); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		c.mux = New(ctx, Config{
			Resolve: func(uid string) (instance.Driver, string, bool) { return driver, "c1", uid == "a" },
			Send:    c.receive, Logger: slog.New(slog.DiscardHandler),
		})
		f(t, c)
		c.mux.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
}

func (c *controller) receive(d *nodev1.StreamData) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken {
		return errors.New("the connection is gone")
	}
	if c.last[d.GetStream()] != nil && d.GetCredit() == 0 {
		c.t.Errorf("stream %d: %v follows its end", d.GetStream(), d)
	}
	if len(d.GetData()) > 0 {
		channels := c.got[d.GetStream()]
		if channels == nil {
			channels = map[nodev1.Channel]*bytes.Buffer{}
			c.got[d.GetStream()] = channels
		}
		if channels[d.GetChannel()] == nil {
			channels[d.GetChannel()] = &bytes.Buffer{}
		}
		channels[d.GetChannel()].Write(d.GetData())
	}
	c.credit[d.GetStream()] += d.GetCredit()
	if d.GetClosed() {
		c.last[d.GetStream()] = d
	}
	return nil
}

func (c *controller) text(stream int64, channel nodev1.Channel) string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.got[stream][channel]; b != nil {
		return b.String()
	}
	return ""
}

func (c *controller) out(stream int64) string {
	return c.text(stream, nodev1.Channel_CHANNEL_STDOUT)
}

func (c *controller) ended(stream int64) *nodev1.StreamData {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last[stream]
}

func (c *controller) exec(stream int64, stdin bool, command ...string) {
	c.mux.Open(&nodev1.OpenStream{Stream: stream, Uid: "a", Session: &nodev1.OpenStream_Exec{
		Exec: &nodev1.ExecSession{Command: command, Stdin: stdin},
	}})
}

func (c *controller) log(stream int64, log *nodev1.LogSession) {
	c.mux.Open(&nodev1.OpenStream{Stream: stream, Uid: "a", Session: &nodev1.OpenStream_Log{Log: log}})
}

func TestLogs(t *testing.T) {
	with(t, instancefake.Config{}, func(t *testing.T, c *controller) {
		c.host.Print("a", "old")
		time.Sleep(time.Minute)
		c.host.Print("a", "new")
		tail, since := int64(1), int64(10)
		c.log(1, &nodev1.LogSession{})
		c.log(2, &nodev1.LogSession{TailLines: &tail})
		c.log(3, &nodev1.LogSession{SinceSeconds: &since, Timestamps: true})
		for stream, want := range map[int64]string{1: "old\nnew\n", 2: "new\n", 3: "Z new\n"} {
			if got := c.out(stream); !strings.HasSuffix(got, want) || (stream != 3 && got != want) {
				t.Errorf("log %d is %q, want %q", stream, got, want)
			}
			if e := c.ended(stream); e == nil || e.GetError() != "" {
				t.Errorf("log %d ended with %v, want a good end", stream, e)
			}
		}
	})
}

func TestFollowEndsWithItsReader(t *testing.T) {
	with(t, instancefake.Config{}, func(t *testing.T, c *controller) {
		c.log(1, &nodev1.LogSession{Follow: true})
		c.host.Print("a", "one")
		if got := c.out(1); got != "one\n" || c.ended(1) != nil {
			t.Errorf("followed %q, ended %v, want one line and no end", got, c.ended(1))
		}
		c.mux.Data(&nodev1.StreamData{Stream: 1, Closed: true})
		if c.ended(1) == nil {
			t.Error("the session did not end with its reader")
		}
		c.host.Print("a", "two")
		if got := c.out(1); got != "one\n" {
			t.Errorf("followed %q after the end", got)
		}
	})
}

func TestExec(t *testing.T) {
	with(t, instancefake.Config{}, func(t *testing.T, c *controller) {
		c.exec(1, false, "exit", "3")
		c.exec(2, false, "nonsense")
		c.exec(3, true, "cat")
		c.mux.Data(&nodev1.StreamData{Stream: 3, Channel: nodev1.Channel_CHANNEL_STDIN, Data: []byte("over and")})
		c.mux.Data(&nodev1.StreamData{Stream: 3, Channel: nodev1.Channel_CHANNEL_STDIN, Data: []byte(" out"), EndOfInput: true})
		if got := c.ended(1); got.GetExitCode() != 3 || got.GetError() != "" {
			t.Errorf("exit 3 ended with %v", got)
		}
		if got := c.ended(2); got.GetExitCode() != 127 || c.text(2, nodev1.Channel_CHANNEL_STDERR) == "" {
			t.Errorf("an unknown command ended with %v and said %q", got, c.text(2, nodev1.Channel_CHANNEL_STDERR))
		}
		if got := c.out(3); got != "over and out" || c.ended(3) == nil {
			t.Errorf("cat gave %q, ended %v", got, c.ended(3))
		}
	})
}

func TestExecLearnsOfItsTerminal(t *testing.T) {
	with(t, instancefake.Config{}, func(t *testing.T, c *controller) {
		c.mux.Open(&nodev1.OpenStream{Stream: 1, Uid: "a", Session: &nodev1.OpenStream_Exec{
			Exec: &nodev1.ExecSession{Command: []string{"sizes"}, Tty: true, Width: 80, Height: 25},
		}})
		if got := c.out(1); got != "80x25\n" {
			t.Errorf("sizes %q, want the first", got)
		}
		c.mux.Data(&nodev1.StreamData{Stream: 1, Width: 100, Height: 40})
		if got := c.out(1); got != "80x25\n100x40\n" {
			t.Errorf("sizes %q, want both", got)
		}
	})
}

func TestPort(t *testing.T) {
	with(t, instancefake.Config{}, func(t *testing.T, c *controller) {
		open := func(stream int64, port int32) {
			c.mux.Open(&nodev1.OpenStream{Stream: stream, Uid: "a", Session: &nodev1.OpenStream_Port{Port: &nodev1.PortSession{Port: port}}})
		}
		open(1, 7)
		open(2, 9)
		c.mux.Data(&nodev1.StreamData{Stream: 1, Data: []byte("ping")})
		if got := c.out(1); got != "ping" || c.ended(1) != nil {
			t.Errorf("echoed %q, ended %v", got, c.ended(1))
		}
		if got := c.ended(2); !strings.Contains(got.GetError(), "refused") {
			t.Errorf("a closed port ended with %v", got)
		}
		c.mux.Data(&nodev1.StreamData{Stream: 1, Closed: true})
		if got := c.ended(1); got == nil || got.GetError() != "" {
			t.Errorf("the port ended with %v, want a good end", got)
		}
	})
}

func holding(stream int64, uid string, h *nodev1.HoldSession) *nodev1.OpenStream {
	return &nodev1.OpenStream{Stream: stream, Uid: uid, Session: &nodev1.OpenStream_Hold{Hold: h}}
}

func TestHold(t *testing.T) {
	with(t, instancefake.Config{}, func(t *testing.T, c *controller) {
		for stream, tc := range []struct {
			order   *nodev1.HoldSession
			message string
		}{
			{&nodev1.HoldSession{Suspended: true}, ""},
			{&nodev1.HoldSession{Suspended: true}, ""},
			{&nodev1.HoldSession{Suspended: true, ToDisk: true}, instancefake.OnDisk},
			{&nodev1.HoldSession{}, ""},
		} {
			c.mux.Open(holding(int64(stream+1), "a", tc.order))
			if last := c.ended(int64(stream + 1)); last == nil || last.GetError() != "" {
				t.Fatalf("%v ended with %v", tc.order, last)
			}
			driver, _, _ := c.mux.cfg.Resolve("a")
			status := driver.Observations()[0].Status
			suspended := tc.order.GetSuspended()
			if status.Suspended != suspended || status.Ready == suspended || status.Phase != rikv1alpha1.InstanceRunning || status.Message != tc.message {
				t.Errorf("after %v the status is %+v", tc.order, status)
			}
		}
	})
}

func TestHoldRefusals(t *testing.T) {
	with(t, instancefake.Config{}, func(t *testing.T, c *controller) {
		c.mux.Open(holding(1, "b", &nodev1.HoldSession{Suspended: true}))
		if last := c.ended(1); last.GetProblem() != nodev1.Problem_PROBLEM_UNKNOWN_INSTANCE {
			t.Errorf("holding an unknown instance ended with %v", last)
		}
		c.mux.Open(&nodev1.OpenStream{Stream: 2, Uid: "a", Container: "c1", Session: &nodev1.OpenStream_Exec{Exec: &nodev1.ExecSession{Command: []string{"exit", "0"}}}})
		c.ended(2)
		driver, _, _ := c.mux.cfg.Resolve("a")
		driver.(*instancefake.Driver).Exit("a", 0)
		c.mux.Open(holding(3, "a", &nodev1.HoldSession{Suspended: true}))
		if last := c.ended(3); last.GetProblem() != nodev1.Problem_PROBLEM_NOT_RUNNING {
			t.Errorf("holding one that has ended ended with %v", last)
		}
	})
	if got := problemOf(fmt.Errorf("holding: %w", errors.ErrUnsupported)); got != nodev1.Problem_PROBLEM_UNSUPPORTED {
		t.Errorf("problemOf(unsupported) = %v", got)
	}
	if got := problemOf(fmt.Errorf("resuming: %w", instance.ErrLost)); got != nodev1.Problem_PROBLEM_LOST {
		t.Errorf("problemOf(lost) = %v", got)
	}
}

func TestRefusals(t *testing.T) {
	with(t, instancefake.Config{}, func(t *testing.T, c *controller) {
		c.mux.Open(&nodev1.OpenStream{Stream: 1, Uid: "b", Session: &nodev1.OpenStream_Log{Log: &nodev1.LogSession{}}})
		c.mux.Open(&nodev1.OpenStream{Stream: 2, Uid: "a"})
		c.mux.Open(&nodev1.OpenStream{Stream: 3, Uid: "a", Container: "c9", Session: &nodev1.OpenStream_Log{Log: &nodev1.LogSession{}}})
		for stream, want := range map[int64]string{1: instance.ErrUnknown.Error(), 2: "kind of session", 3: `"c9"`} {
			if got := c.ended(stream).GetError(); !strings.Contains(got, want) {
				t.Errorf("session %d ended with %q, want it to say %q", stream, got, want)
			}
		}
		// Data for a missing session has no effect.
		c.mux.Data(&nodev1.StreamData{Stream: 99, Data: []byte("x"), Closed: true})
	})
}

// blaster writes forever. How much gets through depends on its reader.
func blaster(ctx context.Context, _, _ string, options instance.ExecOptions) (int, error) {
	chunk := make([]byte, 10_000)
	for ctx.Err() == nil {
		if _, err := options.Stdout.Write(chunk); err != nil {
			return 1, err
		}
	}
	return 0, nil
}

func TestSlowReaderHoldsUpOnlyItself(t *testing.T) {
	with(t, instancefake.Config{Exec: blaster}, func(t *testing.T, c *controller) {
		c.exec(1, false, "slow")
		if got := len(c.out(1)); got != Window {
			t.Errorf("a reader that gave no credit was sent %d bytes, want %d", got, Window)
		}
		c.host.Print("a", "quick")
		c.log(2, &nodev1.LogSession{})
		if got := c.out(2); got != "quick\n" || c.ended(2) == nil {
			t.Errorf("beside it a log gave %q, ended %v", got, c.ended(2))
		}
		c.mux.Data(&nodev1.StreamData{Stream: 1, Credit: 12345})
		if got := len(c.out(1)); got != Window+12345 {
			t.Errorf("after credit it was sent %d bytes, want %d", got, Window+12345)
		}
	})
}

// An exec that does not read its input receives no more than the window. An exec that reads
// grants credit for everything.
func TestInputIsBounded(t *testing.T) {
	with(t, instancefake.Config{}, func(t *testing.T, c *controller) {
		full := bytes.Repeat([]byte("x"), Window)
		c.exec(1, true, "sleep")
		c.exec(2, true, "cat")
		synctest.Wait()
		c.mux.Data(&nodev1.StreamData{Stream: 1, Data: full})
		c.mux.Data(&nodev1.StreamData{Stream: 2, Data: full})
		if len(c.out(2)) != Window {
			t.Errorf("cat gave %d bytes, want all", len(c.out(2)))
		}
		c.mu.Lock()
		first, second := c.credit[1], c.credit[2]
		c.mu.Unlock()
		if first != 0 || second != Window {
			t.Errorf("credit %d and %d, want none and %d", first, second, Window)
		}
		// A peer that sends without credit loses the session, and only that one.
		c.mux.Data(&nodev1.StreamData{Stream: 1, Data: []byte("x")})
		if got := c.ended(1); !strings.Contains(got.GetError(), "credit") {
			t.Errorf("an overrun session ended with %v", got)
		}
		if c.ended(2) != nil {
			t.Error("another session ended as well")
		}
	})
}

func TestSessionsEndWithTheConnection(t *testing.T) {
	with(t, instancefake.Config{}, func(t *testing.T, c *controller) {
		for stream := range int64(50) {
			c.exec(stream, true, []string{"sleep", "cat"}[stream%2])
		}
		synctest.Wait()
		c.mu.Lock()
		c.broken = true
		c.mu.Unlock()
		c.mux.Close()
		c.mux.mu.Lock()
		defer c.mux.mu.Unlock()
		if len(c.mux.sessions) != 0 {
			t.Errorf("%d sessions outlived the connection", len(c.mux.sessions))
		}
	})
}

func TestTooManySessions(t *testing.T) {
	with(t, instancefake.Config{}, func(t *testing.T, c *controller) {
		for stream := range int64(maxSessions) {
			c.exec(stream, false, "sleep")
		}
		c.exec(maxSessions, false, "sleep")
		if got := c.ended(maxSessions).GetError(); !strings.Contains(got, fmt.Sprint(maxSessions)) {
			t.Errorf("one too many ended with %q", got)
		}
		// A duplicate ID opens no session and ends none.
		c.exec(0, false, "sleep")
		if got := c.ended(0); got != nil {
			t.Errorf("a stream id used twice ended its first session with %v", got)
		}
	})
}

func TestInflowReadsInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var granted int64
		in := newInflow(func(n int64) { granted += n })
		var want bytes.Buffer
		read := make(chan []byte, 1)
		go func() {
			all, err := io.ReadAll(in)
			if err != nil {
				t.Errorf("Read() = %v", err)
			}
			read <- all
		}()
		for i := range 1000 {
			data := bytes.Repeat([]byte{byte(i)}, 1+i*7%1000)
			want.Write(data)
			if !in.put(data) {
				t.Fatal("a reader that keeps up was refused input")
			}
			synctest.Wait()
		}
		in.end(io.EOF)
		if got := <-read; !bytes.Equal(got, want.Bytes()) {
			t.Errorf("read %d bytes, want the %d that were sent, in order", len(got), want.Len())
		}
		if granted > int64(want.Len()) || granted < int64(want.Len())-grantAt {
			t.Errorf("granted %d for %d bytes", granted, want.Len())
		}
	})
}
