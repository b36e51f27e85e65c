// Package screen is a pseudo terminal for tests of what a person sees.
package screen

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
)

// Screen reads what programs write to a pseudo terminal.
type Screen struct {
	// TTY is the terminal of the programs.
	TTY *os.File

	mu   sync.Mutex
	text bytes.Buffer
}

// New opens a pseudo terminal of 80 columns until the test ends. The test cannot be parallel, because
// New sets TERM.
func New(t *testing.T) *Screen {
	t.Helper()
	t.Setenv("TERM", "xterm")
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := pty.Setsize(master, &pty.Winsize{Rows: 24, Cols: 80}); err != nil {
		t.Fatal(err)
	}
	s := &Screen{TTY: tty}
	var group sync.WaitGroup
	group.Go(func() {
		part := make([]byte, 4096)
		for {
			n, err := master.Read(part)
			s.mu.Lock()
			s.text.Write(part[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		_ = tty.Close()
		group.Wait() // the reader gets EIO without a writer
		_ = master.Close()
	})
	return s
}

// Await waits until the screen has got a text.
func (s *Screen) Await(t *testing.T, text string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(s.Raw(), text); {
		if time.Now().After(deadline) {
			t.Fatalf("the terminal did not get %q in 10s; it got %q", text, s.Raw())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Raw returns all bytes that the terminal got.
func (s *Screen) Raw() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// Shown returns the lines that a person sees. It knows the two sequences that the line uses: the
// cursor goes up to the first column, and everything below is erased.
func (s *Screen) Shown() []string {
	lines := []string{""}
	text := strings.ReplaceAll(s.Raw(), "\r\n", "\n")
	for text != "" {
		var up int
		if n, _ := fmt.Sscanf(text, "\x1b[%dA", &up); n == 1 {
			lines = append(lines[:len(lines)-1-up], "")
			text = text[strings.Index(text, "A")+1:]
			continue
		}
		if rest, ok := strings.CutPrefix(text, "\x1b[J"); ok {
			text = rest
			continue
		}
		if text[0] == '\n' {
			lines = append(lines, "")
		} else {
			lines[len(lines)-1] += text[:1]
		}
		text = text[1:]
	}
	return lines
}
