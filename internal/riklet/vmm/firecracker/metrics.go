package firecracker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/atomicfile"
	"rik.dev/rik/internal/riklet/vmm"
)

const (
	// maxMetrics limits one read: a pipe holds 64 kB.
	maxMetrics = 1 << 20
	// maxCount is more than any honest counter can increase between two reads. It prevents
	// overflows of the sums.
	maxCount = 1 << 50
)

// report is one line of Firecracker's metrics with the fields that are used here. Its counters
// are the increments since the line before.
type report struct {
	Block struct {
		ReadBytes  uint64 `json:"read_bytes"`
		WriteBytes uint64 `json:"write_bytes"`
		Reads      uint64 `json:"read_count"`
		Writes     uint64 `json:"write_count"`
	} `json:"block"`
	Net struct {
		ReceivedBytes    uint64 `json:"rx_bytes_count"`
		TransmittedBytes uint64 `json:"tx_bytes_count"`
	} `json:"net"`
	VCPU struct {
		In        uint64 `json:"exit_io_in"`
		Out       uint64 `json:"exit_io_out"`
		MMIORead  uint64 `json:"exit_mmio_read"`
		MMIOWrite uint64 `json:"exit_mmio_write"`
	} `json:"vcpu"`
	Seccomp struct {
		Faults uint64 `json:"num_faults"`
	} `json:"seccomp"`
}

// Metrics makes Firecracker write its counters, and adds them to the sums. The sums are stored
// in the machine's directory, so that later agents can continue them. Lines that were lost while
// the pipe was full are not included.
func (v *VM) Metrics(ctx context.Context) (vmm.Metrics, error) {
	v.counting.Lock()
	defer v.counting.Unlock()
	pipe, err := v.openPipe()
	if err != nil {
		return vmm.Metrics{}, err
	}
	defer func() { _ = pipe.Close() }()
	if err := v.api.put(ctx, "/actions", action{Type: "FlushMetrics"}); err != nil {
		return vmm.Metrics{}, err
	}
	m, err := v.sums()
	if err != nil {
		return vmm.Metrics{}, err
	}
	m.MemoryBytes = uint64(mebibytes(v.m.MemoryBytes)) << 20
	lines, err := drain(pipe)
	if err != nil {
		return vmm.Metrics{}, err
	}
	for line := range bytes.Lines(lines) {
		var r report
		// Ignore a line that was cut because the pipe was full.
		if json.Unmarshal(line, &r) == nil {
			r.addTo(&m)
		}
	}
	b, err := json.Marshal(m)
	if err != nil {
		return vmm.Metrics{}, err
	}
	return m, atomicfile.Write(filepath.Join(v.m.Dir, countsFile), b)
}

// openPipe opens the pipe in the jail. It refuses any other file that a VMM may have put in its
// place.
func (v *VM) openPipe() (*os.File, error) {
	jail, err := os.OpenRoot(v.d.root(v.m))
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%w: %w", vmm.ErrGone, err)
		}
		return nil, err
	}
	defer func() { _ = jail.Close() }()
	f, err := jail.OpenFile(metricsFile, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("opening the pipe for metrics: %w", err)
	}
	if info, err := f.Stat(); err != nil || info.Mode().Type() != os.ModeNamedPipe {
		return nil, errors.Join(fmt.Errorf("the pipe for metrics was replaced: %w", vmm.ErrUnsupported), err, f.Close())
	}
	return f, nil
}

// drain reads the present content of the pipe.
func drain(pipe *os.File) ([]byte, error) {
	// The deadline is very near: a read returns the data that exists, or fails soon.
	if err := pipe.SetReadDeadline(time.Now().Add(poll)); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(bufio.NewReader(pipe), maxMetrics))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = nil
	}
	return b, err
}

func (v *VM) sums() (vmm.Metrics, error) {
	var m vmm.Metrics
	b, err := os.ReadFile(filepath.Join(v.m.Dir, countsFile))
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	return m, err
}

// addTo adds the counters, with a maximum for each.
func (r report) addTo(m *vmm.Metrics) {
	for to, by := range map[*uint64]uint64{
		&m.DiskReadBytes: r.Block.ReadBytes, &m.DiskWriteBytes: r.Block.WriteBytes,
		&m.DiskReads: r.Block.Reads, &m.DiskWrites: r.Block.Writes,
		&m.NetworkReceived: r.Net.ReceivedBytes, &m.NetworkTransmitted: r.Net.TransmittedBytes,
		&m.SeccompFaults: r.Seccomp.Faults,
	} {
		*to += min(by, maxCount)
	}
	for _, by := range []uint64{r.VCPU.In, r.VCPU.Out, r.VCPU.MMIORead, r.VCPU.MMIOWrite} {
		m.Exits += min(by, maxCount)
	}
}
