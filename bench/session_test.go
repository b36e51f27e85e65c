package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rik.dev/rik/internal/testkit/rikcluster"
)

const (
	// lines is the length of the log that is read, about 22 MB. Its files hold 30 MiB.
	lines    = 220_000
	readings = 5
	commands = 30
)

// BenchmarkSessions measures sessions between a controller and a riklet in separate processes. It
// measures how fast a long log arrives, and how long a command takes that does nothing. It
// measures the command again while eight other sessions send as fast as they can.
func BenchmarkSessions(b *testing.B) {
	begin(b)
	c := rikcluster.Start(b, rikcluster.Options{Split: true})
	s := newLogWriter(b, c)
	b.ResetTimer()
	for range b.N {
		var took []time.Duration
		for range readings {
			began := time.Now()
			s.read()
			took = append(took, time.Since(began))
		}
		b.ReportMetric(float64(s.bytes)/1e6/percentile(took, 50).Seconds(), "log-MB/s")
		b.ReportMetric(milliseconds(percentile(s.commands(), 50)), "exec-p50-ms")
		stop := s.load(8)
		b.ReportMetric(milliseconds(percentile(s.commands(), 50)), "exec-busy-p50-ms")
		stop()
	}
	b.StopTimer()
	b.Logf("load at the end: %s", load())
}

// logWriter is an instance that has written a long log.
type logWriter struct {
	b     *testing.B
	c     *rikcluster.Cluster
	name  string
	bytes int64
}

func newLogWriter(b *testing.B, c *rikcluster.Cluster) *logWriter {
	b.Helper()
	script := fmt.Sprintf(`yes "$(printf '%%099d' 0)" | head -n %d; exec sleep 3600`, lines)
	if out := c.RikctlInput(rikcluster.Manifest("talker", c.Busybox(), script, ""), "create", "workload", "-f", "-"); out.Code != 0 {
		b.Fatalf("creating the workload: %s", out.Stderr)
	}
	c.Rikctl("create", "instance", "-w", "talker")
	c.Rikctl("wait", "--for=condition=Ready", "instance", "-l", "rik.dev/workload=talker", "--timeout=230s")
	name := strings.TrimSpace(c.Rikctl("get", "instances", "-o", "name"))
	s := &logWriter{b: b, c: c, name: name[strings.LastIndex(name, "/")+1:]}
	c.Eventually(func() error {
		if s.bytes = int64(len(c.TryRikctl("logs", s.name).Stdout)); s.bytes < lines*100 {
			return fmt.Errorf("the log of %s has %d bytes", s.name, s.bytes)
		}
		return nil
	})
	return s
}

func (s *logWriter) read() {
	s.b.Helper()
	if n := len(s.c.Rikctl("logs", s.name)); int64(n) != s.bytes {
		s.b.Fatalf("read %d bytes of %d", n, s.bytes)
	}
}

func (s *logWriter) commands() (took []time.Duration) {
	s.b.Helper()
	for range commands {
		began := time.Now()
		s.c.Rikctl("exec", s.name, "--", "true")
		took = append(took, time.Since(began))
	}
	return took
}

// load keeps n logs under way, each again and again, until stop is called.
func (s *logWriter) load(n int) (stop func()) {
	ctx, cancel := context.WithCancel(s.b.Context())
	done := make(chan struct{}, n)
	for range n {
		go func() {
			defer func() { done <- struct{}{} }()
			for ctx.Err() == nil {
				command := exec.CommandContext(ctx, filepath.Join(s.c.Bin, "rikctl"), "logs", s.name)
				command.Env = append(os.Environ(), "RIKCONFIG="+filepath.Join(s.c.DataDir(), "config.yaml"), "HOME="+s.c.Dir)
				command.Stdout = io.Discard
				_ = command.Run()
			}
		}()
	}
	return func() {
		cancel()
		for range n {
			<-done
		}
	}
}
