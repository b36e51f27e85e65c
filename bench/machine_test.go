package bench

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"rik.dev/rik/internal/testkit/privileged"
	testprocess "rik.dev/rik/internal/testkit/process"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// timeout is longer than a test's, because a benchmark is useful on a busy machine too.
const timeout = 10 * time.Minute

// begin is the first call of every benchmark. It logs the machine's properties.
func begin(b *testing.B) {
	b.Helper()
	privileged.Require(b)
	var u syscall.Utsname
	if err := syscall.Uname(&u); err != nil {
		b.Fatal(err)
	}
	var release []byte
	for _, c := range u.Release {
		if c != 0 {
			release = append(release, byte(c))
		}
	}
	b.Logf("machine: %d CPUs (%s), %s MiB, kernel %s, %s, load %s, %s",
		runtime.NumCPU(), value("/proc/cpuinfo", "model name"), mebibytes(value("/proc/meminfo", "MemTotal")),
		release, strings.Trim(value("/etc/os-release", "PRETTY_NAME"), `"`), load(), time.Now().UTC().Format(time.DateOnly))
	b.Logf("programs: rik %s", strings.TrimSpace(rikcluster.Run(b, "rik", "version").Stdout))
}

// value returns the value of the first "key: value" or "key=value" in a file.
func value(file, key string) string {
	raw, _ := os.ReadFile(file)
	for line := range strings.Lines(string(raw)) {
		if i := strings.IndexAny(line, ":="); i > 0 && strings.TrimSpace(line[:i]) == key {
			return strings.TrimSpace(line[i+1:])
		}
	}
	return "unknown"
}

func mebibytes(kilobytes string) string {
	n, _ := strconv.Atoi(strings.TrimSuffix(kilobytes, " kB"))
	return strconv.Itoa(n / 1024)
}

func load() string {
	raw, _ := os.ReadFile("/proc/loadavg")
	return strings.Join(strings.Fields(string(raw))[:3], " ")
}

// process has the kernel's measurements of a process.
type process struct {
	resident, peak, proportional float64 // MiB
	cpu                          time.Duration
}

func read(b *testing.B, pid int) process {
	b.Helper()
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	status, rollup := filepath.Join(dir, "status"), filepath.Join(dir, "smaps_rollup")
	raw, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		b.Fatalf("the process that is measured: %v", err)
	}
	// After the name, which may contain anything: utime and stime are fields 14 and 15 of
	// proc(5), counted here from 3, in hundredths of a second.
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	user, _ := strconv.Atoi(fields[14-3])
	system, _ := strconv.Atoi(fields[15-3])
	return process{
		resident: mib(value(status, "VmRSS")), peak: mib(value(status, "VmHWM")), proportional: mib(value(rollup, "Pss")),
		cpu: time.Duration(user+system) * 10 * time.Millisecond,
	}
}

func mib(kilobytes string) float64 {
	n, _ := strconv.ParseFloat(strings.TrimSuffix(kilobytes, " kB"), 64)
	return n / 1024
}

// percentile returns the smallest value that at least p percent of the values do not exceed. It
// sorts a copy.
func percentile(all []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// setting returns a number from the environment, for longer manual runs.
func setting(b *testing.B, name string, fallback int) int {
	b.Helper()
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		b.Fatalf("%s: %v", name, err)
	}
	return n
}

// start runs a program in a separate process until the benchmark ends, or stop is called.
func start(b *testing.B, log, program string, args ...string) (pid int, stop func()) {
	b.Helper()
	p, err := testprocess.Start(program, log, args...)
	if err != nil {
		b.Fatal(err)
	}
	stop = func() { _ = p.Stop() } // its result does not matter
	b.Cleanup(func() {
		stop()
		if b.Failed() {
			said := p.Log()
			b.Logf("%s said:\n%s", filepath.Base(program), said[max(0, len(said)-4000):])
		}
	})
	return p.PID(), stop
}

// settle waits until a process is idle: after garbage collections and the first rounds of
// periodic work.
func settle(d time.Duration) { <-time.After(d) }

func mustRun(b *testing.B, program string, args ...string) string {
	b.Helper()
	out, err := exec.Command(program, args...).CombinedOutput()
	if err != nil {
		b.Fatal(fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, out))
	}
	return string(out)
}
