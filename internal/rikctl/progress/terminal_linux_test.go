package progress

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// On a terminal each task has a line that changes, and its last line stays above those of the others.
func TestBars(t *testing.T) {
	t.Parallel()
	terminal, shown := newTerminal(t)
	d := New(terminal, false)
	a, b := d.Task("node/a"), d.Task("node/b")
	a.Set(State{Text: "pulling", Bytes: 34 << 20, Total: 120 << 20})
	b.Set(State{Text: "receiving", Bytes: 5 << 20})
	shown.await(t, "node/a", "pulling: 34.0 MiB of 120.0 MiB", "node/b", "receiving: 5.0 MiB", "=>")
	a.End("pulled")
	b.End("")
	d.Close()
	shown.await(t, "node/a: pulled")
}

// screen has what a program wrote to a terminal.
type screen struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *screen) await(t *testing.T, words ...string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		s.mu.Lock()
		text := s.text.String()
		s.mu.Unlock()
		missing := slices.DeleteFunc(slices.Clone(words), func(word string) bool { return strings.Contains(text, word) })
		if len(missing) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the terminal does not show %q: %q", missing, text)
		}
	}
}

// newTerminal returns a terminal of 120 columns.
func newTerminal(t *testing.T) (*os.File, *screen) {
	t.Helper()
	controller, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(controller.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 25, Col: 120}); err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{}
	var reading sync.WaitGroup
	reading.Go(func() {
		buffer := make([]byte, 4096)
		for {
			n, err := controller.Read(buffer)
			s.mu.Lock()
			s.text.Write(buffer[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		_ = terminal.Close() // the reader gets an error then
		reading.Wait()
		_ = controller.Close()
	})
	return terminal, s
}
