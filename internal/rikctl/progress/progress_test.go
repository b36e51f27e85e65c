package progress

import (
	"bytes"
	"testing"
	"time"
)

// Without a terminal there is a line for each step, and for each interval of a long one.
func TestLines(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	d := New(&out, false)
	now := time.Time{}
	d.now = func() time.Time { return now }
	a := d.Task("a")
	for _, tc := range []struct {
		after time.Duration
		state State
	}{
		{0, State{Text: "pulling"}},
		{time.Second, State{Text: "pulling", Bytes: 1 << 20, Total: 10 << 20}},
		{interval, State{Text: "pulling", Bytes: 2 << 20, Total: 10 << 20}},
		{0, State{Text: "unpacking", Bytes: 512}},
	} {
		now = now.Add(tc.after)
		a.Set(tc.state)
	}
	a.End("done")
	a.End("again")
	a.Set(State{Text: "late"})
	d.Close()
	const want = "a: pulling\na: pulling: 2.0 MiB of 10.0 MiB\na: unpacking: 512 B\na: done\n"
	if out.String() != want {
		t.Errorf("lines\n%s\nwant\n%s", out.String(), want)
	}
}

func TestQuiet(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	task := New(&out, true).Task("a")
	task.Set(State{Text: "pulling"})
	task.End("done")
	if out.Len() > 0 {
		t.Errorf("a quiet display printed %q", out.String())
	}
}

func TestBytes(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 3 << 19: "1.5 MiB", 5 << 30: "5.0 GiB", 1 << 62: "4194304.0 TiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %s, want %s", n, got, want)
		}
	}
}
