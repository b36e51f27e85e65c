package runner

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"rik.dev/rik/internal/riklet/instance"
)

// countTimeout is how long a VMM may take to answer: it does so at once, or is busy
// with something that nobody is to wait for.
const countTimeout = 500 * time.Millisecond

// count asks a machine's VMM what it counts; nil when it does not say.
func (e vmEngine) count(m *machine) *instance.VMUsage {
	pid, ok := m.namespaces()
	if !ok || e.d.cfg.VM == nil {
		return nil
	}
	note, err := e.d.vmNote(m.uid)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), countTimeout)
	defer cancel()
	vm, err := e.d.cfg.VM.Driver.Connect(ctx, note.Machine)
	if err != nil {
		return nil
	}
	defer vm.Close()
	found, err := vm.Metrics(ctx)
	if err != nil {
		e.d.cfg.Logger.Debug("a VMM does not say what it counts", "instance", m.uid, "err", err)
		return nil
	}
	u := &instance.VMUsage{
		VCPUNanos: found.VCPUNanos, Exits: found.Exits,
		DiskReadBytes: found.DiskReadBytes, DiskWriteBytes: found.DiskWriteBytes, DiskReads: found.DiskReads, DiskWrites: found.DiskWrites,
	}
	// The kernel counts for every VMM, and believes no guest.
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", pid)); err == nil {
		u.NetworkReceiveBytes, u.NetworkTransmitBytes = interfaceBytes(string(text), "eth0")
	}
	return u
}

// interfaceBytes reads what went through a device from the text of proc_pid_net(5):
// after its name come eight numbers of what was received, then those of what was sent.
func interfaceBytes(text, name string) (received, sent uint64) {
	for line := range strings.Lines(text) {
		device, numbers, ok := strings.Cut(line, ":")
		fields := strings.Fields(numbers)
		if !ok || strings.TrimSpace(device) != name || len(fields) < 9 {
			continue
		}
		received, _ = strconv.ParseUint(fields[0], 10, 64)
		sent, _ = strconv.ParseUint(fields[8], 10, 64)
	}
	return received, sent
}
