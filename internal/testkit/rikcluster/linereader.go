package rikcluster

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"rik.dev/rik/internal/testkit/interrupt"
)

// LineReader reads the output of a rikctl that runs until it is stopped, such as logs -f or
// port-forward.
type LineReader struct {
	tb    testing.TB
	args  string
	end   context.CancelFunc
	lines chan string
	seen  []string
}

// LineReader starts rikctl as administrator. It ends with the test, or when it is stopped.
func (c *Cluster) LineReader(args ...string) *LineReader {
	c.tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, filepath.Join(c.Bin, "rikctl"), args...)
	cmd.Env = append(os.Environ(), "RIKCONFIG="+filepath.Join(c.DataDir(), "config.yaml"), "HOME="+c.Dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.tb.Fatal(err)
	}
	t := &LineReader{tb: c.tb, args: strings.Join(args, " "), end: cancel, lines: make(chan string, 1000)}
	go func() {
		defer close(t.lines)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			select {
			case t.lines <- scanner.Text():
			case <-ctx.Done():
			}
		}
		_ = cmd.Wait()
	}()
	c.tb.Cleanup(t.Stop)
	return t
}

// WaitLine waits for a line that matches the pattern and returns its groups.
func (t *LineReader) WaitLine(pattern string) []string {
	t.tb.Helper()
	expression, timeout := regexp.MustCompile(pattern), time.After(Timeout)
	for {
		select {
		case line, more := <-t.lines:
			if !more {
				t.tb.Fatalf("rikctl %s ended without a line like %s, it said:\n%s", t.args, pattern, strings.Join(t.seen, "\n"))
			}
			t.seen = append(t.seen, line)
			if found := expression.FindStringSubmatch(line); found != nil {
				return found
			}
		case <-interrupt.Done():
			t.tb.Fatalf("%v; rikctl %s has said no line like %s yet", interrupt.Cause(), t.args, pattern)
		case <-timeout:
			t.tb.Fatalf("rikctl %s said no line like %s in %v, but:\n%s", t.args, pattern, Timeout, strings.Join(t.seen, "\n"))
		}
	}
}

// Stop stops rikctl.
func (t *LineReader) Stop() {
	t.end()
	for range t.lines { // until it has ended
	}
}
