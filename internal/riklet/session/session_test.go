package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/instance/instancefake"
	"rik.dev/rik/internal/rpc/nodev1"
)

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
		c.leave(1)
		synctest.Wait()
		if n := c.left(); n != 0 {
			t.Errorf("%d sessions did not end with their reader", n)
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
		c.send(3, nodev1.NewInput([]byte("over and")), nodev1.NewInput([]byte(" out")), nodev1.NewEndOfInput())
		if got := c.ended(1); got.GetExitCode() != 3 || got.GetError() != "" {
			t.Errorf("exit 3 ended with %v", got)
		}
		if got := c.ended(2); got.GetExitCode() != 127 || c.text(2, nodev1.Channel_CHANNEL_STDERR) == "" {
			t.Errorf("an unknown command ended with %v and the output %q", got, c.text(2, nodev1.Channel_CHANNEL_STDERR))
		}
		if got := c.out(3); got != "over and out" || c.ended(3) == nil {
			t.Errorf("cat gave %q, ended %v", got, c.ended(3))
		}
	})
}

func TestExecGetsTerminalSizes(t *testing.T) {
	with(t, instancefake.Config{}, func(t *testing.T, c *controller) {
		c.open(1, &nodev1.OpenSession{Kind: &nodev1.OpenSession_Exec{
			Exec: &nodev1.ExecSession{Command: []string{"sizes"}, Tty: true, Width: 80, Height: 25},
		}})
		if got := c.out(1); got != "80x25\n" {
			t.Errorf("sizes %q, want the first", got)
		}
		c.send(1, nodev1.NewSize(100, 40))
		if got := c.out(1); got != "80x25\n100x40\n" {
			t.Errorf("sizes %q, want both", got)
		}
	})
}

func TestPort(t *testing.T) {
	with(t, instancefake.Config{}, func(t *testing.T, c *controller) {
		open := func(stream int64, port int32) {
			c.open(stream, &nodev1.OpenSession{Kind: &nodev1.OpenSession_Port{Port: &nodev1.PortSession{Port: port}}})
		}
		open(1, 7)
		open(2, 9)
		c.send(1, nodev1.NewInput([]byte("ping")))
		if got := c.out(1); got != "ping" || c.ended(1) != nil {
			t.Errorf("echoed %q, ended %v", got, c.ended(1))
		}
		if got := c.ended(2); !strings.Contains(got.GetError(), "refused") {
			t.Errorf("a closed port ended with %v", got)
		}
		c.leave(1)
		synctest.Wait()
		if n := c.left(); n != 0 {
			t.Errorf("%d sessions are left after their user", n)
		}
	})
}

func holding(uid string, h *nodev1.HoldSession) *nodev1.OpenSession {
	return &nodev1.OpenSession{Uid: uid, Kind: &nodev1.OpenSession_Hold{Hold: h}}
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
			c.open(int64(stream+1), holding("a", tc.order))
			if last := c.ended(int64(stream + 1)); last == nil || last.GetError() != "" {
				t.Fatalf("%v ended with %v", tc.order, last)
			}
			status := c.driver.Observations()[0].Status
			suspended := tc.order.GetSuspended()
			if status.Suspended != suspended || status.Ready == suspended || status.Phase != rikv1alpha1.InstanceRunning || status.Message != tc.message {
				t.Errorf("after %v the status is %+v", tc.order, status)
			}
		}
	})
}

func TestHoldRefusals(t *testing.T) {
	with(t, instancefake.Config{}, func(t *testing.T, c *controller) {
		c.open(1, holding("b", &nodev1.HoldSession{Suspended: true}))
		if last := c.ended(1); last.GetProblem() != nodev1.Problem_PROBLEM_UNKNOWN_INSTANCE {
			t.Errorf("holding an unknown instance ended with %v", last)
		}
		c.exec(2, false, "exit", "0")
		c.ended(2)
		c.driver.(*instancefake.Driver).Exit("a", 0)
		c.open(3, holding("a", &nodev1.HoldSession{Suspended: true}))
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

// echoing answers a request about images with the archive that it receives.
type echoing struct{}

func (echoing) Serve(_ context.Context, request *nodev1.ImagesSession, in io.ReadCloser, out io.Writer) error {
	if request.GetExport() != nil {
		return used{errors.New("web-1 uses it")}
	}
	_, err := io.Copy(out, in)
	return errors.Join(err, in.Close())
}

type used struct{ error }

func (used) Problem() nodev1.Problem { return nodev1.Problem_PROBLEM_IN_USE }

func TestImages(t *testing.T) {
	with(t, instancefake.Config{}, func(t *testing.T, c *controller) {
		importing := &nodev1.ImagesSession{Request: &nodev1.ImagesSession_Import{Import: &nodev1.ImportImages{}}}
		// It needs no instance.
		c.sessions.Open(&nodev1.OpenSession{Session: 1, Secret: []byte("secret"), Kind: &nodev1.OpenSession_Images{Images: importing}})
		c.send(1, nodev1.NewInput([]byte("arch")), nodev1.NewInput([]byte("ive")), nodev1.NewEndOfInput())
		if got := c.out(1); got != "archive" || c.ended(1).GetError() != "" || c.ended(1) == nil {
			t.Errorf("the import received %q, ended %v", got, c.ended(1))
		}
		exporting := &nodev1.ImagesSession{Request: &nodev1.ImagesSession_Export{Export: &nodev1.ExportImage{}}}
		c.open(2, &nodev1.OpenSession{Kind: &nodev1.OpenSession_Images{Images: exporting}})
		if end := c.ended(2); end.GetProblem() != nodev1.Problem_PROBLEM_IN_USE || end.GetError() != "web-1 uses it" {
			t.Errorf("a refused request ended with %v", end)
		}
		// A user who leaves ends an import that waits for the archive.
		c.open(3, &nodev1.OpenSession{Kind: &nodev1.OpenSession_Images{Images: importing}})
		synctest.Wait()
		c.leave(3)
		synctest.Wait()
		if n := c.left(); n != 0 {
			t.Errorf("%d sessions are left after their user", n)
		}
	})
}

func TestRefusals(t *testing.T) {
	with(t, instancefake.Config{}, func(t *testing.T, c *controller) {
		c.open(1, &nodev1.OpenSession{Uid: "b", Kind: &nodev1.OpenSession_Log{Log: &nodev1.LogSession{}}})
		c.open(2, &nodev1.OpenSession{})
		c.open(3, &nodev1.OpenSession{Container: "c9", Kind: &nodev1.OpenSession_Log{Log: &nodev1.LogSession{}}})
		for stream, want := range map[int64]string{1: instance.ErrUnknown.Error(), 2: "kind of session", 3: `"c9"`} {
			if got := c.ended(stream).GetError(); !strings.Contains(got, want) {
				t.Errorf("session %d ended with %q, want the text %q in it", stream, got, want)
			}
		}
		// The end of a missing session has no effect.
		c.sessions.End(&nodev1.CloseSession{Session: 99})
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

func TestSlowReaderDelaysOnlyItself(t *testing.T) {
	var written atomic.Int64
	counted := func(ctx context.Context, uid, container string, options instance.ExecOptions) (int, error) {
		to := options.Stdout
		options.Stdout = writerFunc(func(p []byte) (int, error) {
			n, err := to.Write(p)
			written.Add(int64(n))
			return n, err
		})
		return blaster(ctx, uid, container, options)
	}
	with(t, instancefake.Config{Exec: counted}, func(t *testing.T, c *controller) {
		u := c.user(1)
		u.pause = make(chan struct{})
		c.exec(1, false, "slow")
		synctest.Wait()
		// gRPC holds 64 KiB of what was written, in addition to the window.
		first := written.Load()
		if limit := int64(nodev1.Window + 64<<10 + 2*nodev1.Piece); first > limit || c.ended(1) != nil {
			t.Errorf("an instance whose user does not read wrote %d bytes, want at most %d, and no end", first, limit)
		}
		c.host.Print("a", "quick")
		c.log(2, &nodev1.LogSession{})
		if got := c.out(2); got != "quick\n" || c.ended(2) == nil {
			t.Errorf("meanwhile a log gave %q, ended %v", got, c.ended(2))
		}
		if now := written.Load(); now != first {
			t.Errorf("the instance wrote %d bytes more to a user who does not read", now-first)
		}
		// The user reads everything that was written, and leaves.
		u.enough = int(first)
		close(u.pause)
		synctest.Wait()
		if got := u.bytes(); got <= int(first) {
			t.Errorf("a user who reads again got %d bytes, want more than the %d of before", got, first)
		}
		c.leave(1)
		synctest.Wait()
		if n := c.left(); n != 0 {
			t.Errorf("%d sessions are left after their user", n)
		}
	})
}

// left returns the number of sessions.
func (c *controller) left() int {
	c.sessions.mu.Lock()
	defer c.sessions.mu.Unlock()
	return len(c.sessions.open)
}

// TestInputIsBounded checks that an exec that does not read its input stops its user. The user can
// still leave, and an exec that reads gets everything.
func TestInputIsBounded(t *testing.T) {
	with(t, instancefake.Config{}, func(t *testing.T, c *controller) {
		piece := bytes.Repeat([]byte("x"), nodev1.Piece)
		const pieces = 32 // 1 MiB
		c.exec(1, true, "sleep")
		c.exec(2, true, "cat")
		for range pieces {
			c.send(1, nodev1.NewInput(piece))
			c.send(2, nodev1.NewInput(piece))
		}
		c.send(2, nodev1.NewEndOfInput())
		if got := len(c.out(2)); got != pieces*nodev1.Piece || c.ended(2) == nil {
			t.Errorf("cat gave %d bytes, ended %v, want all", got, c.ended(2))
		}
		// The waiting data is in the input, in the window and in the sender of gRPC.
		if sent := (pieces - len(c.user(1).send)) * nodev1.Piece; sent > nodev1.Window+maxInput+64<<10+3*nodev1.Piece {
			t.Errorf("%d bytes were sent to an exec that does not read", sent)
		}
		if c.ended(1) != nil {
			t.Errorf("an exec that does not read ended with %v", c.ended(1))
		}
		c.leave(1)
		synctest.Wait()
		if n := c.left(); n != 0 {
			t.Errorf("%d sessions are left after their user", n)
		}
	})
}

func TestSessionsEndWithTheConnection(t *testing.T) {
	for name, lose := range map[string]func(*controller){
		"the connection is lost": func(c *controller) { _ = c.conn.Close() },
		"the riklet stops":       func(*controller) {},
	} {
		t.Run(name, func(t *testing.T) {
			with(t, instancefake.Config{}, func(t *testing.T, c *controller) {
				for id := range int64(50) {
					c.exec(id, true, []string{"sleep", "cat"}[id%2])
				}
				synctest.Wait()
				if n := c.left(); n != 50 {
					t.Errorf("%d sessions, want 50", n)
				}
				lose(c)
				c.sessions.Close()
				if n := c.left(); n != 0 {
					t.Errorf("%d sessions outlived the connection", n)
				}
				c.exec(99, false, "sleep")
				if n := c.left(); n != 0 {
					t.Error("a session was opened after the end")
				}
			})
		})
	}
}

// TestUnacceptedSessionsDoNothing checks that the node acts only after the controller has accepted
// the stream. Otherwise a command could run although its user has received an error.
func TestUnacceptedSessionsDoNothing(t *testing.T) {
	var ran atomic.Int32
	count := func(context.Context, string, string, instance.ExecOptions) (int, error) {
		ran.Add(1)
		return 0, nil
	}
	with(t, instancefake.Config{Exec: count}, func(t *testing.T, c *controller) {
		c.user(1).refuse = true
		c.exec(1, false, "x")
		c.exec(2, false, "x")
		if c.ended(2) == nil || ran.Load() != 1 || c.left() != 0 {
			t.Errorf("%d commands ran and %d sessions are left, want the accepted one and none", ran.Load(), c.left())
		}
	})
}

func TestTooManySessions(t *testing.T) {
	with(t, instancefake.Config{}, func(t *testing.T, c *controller) {
		for id := range int64(nodev1.MaxSessions) {
			c.exec(id, false, "sleep")
		}
		c.exec(nodev1.MaxSessions, false, "sleep")
		if got := c.ended(nodev1.MaxSessions).GetError(); !strings.Contains(got, fmt.Sprint(nodev1.MaxSessions)) {
			t.Errorf("one too many ended with %q", got)
		}
		// A duplicate number opens no session and ends none.
		c.exec(0, false, "sleep")
		if got := c.ended(0); got != nil || c.left() != nodev1.MaxSessions {
			t.Errorf("a number used twice ended its first session with %v; %d are left", got, c.left())
		}
	})
}

func TestInputIsReadInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		in := newInput()
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
			in.put(data)
		}
		in.end(io.EOF)
		in.put([]byte("after the end"))
		if got := <-read; !bytes.Equal(got, want.Bytes()) {
			t.Errorf("read %d bytes, want the %d that were sent, in order", len(got), want.Len())
		}
	})
}
