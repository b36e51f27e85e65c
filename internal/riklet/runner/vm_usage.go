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

// countTimeout bounds a VMM's answer about its counters. A VMM answers at once, or it is busy and
// not worth waiting for.
const countTimeout = 500 * time.Millisecond

// count returns the counters of a machine's VMM, or nil if the VMM does not answer.
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
	// The kernel counts the network traffic: that works for every VMM and does not trust the
	// guest.
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", pid)); err == nil {
		u.NetworkReceiveBytes, u.NetworkTransmitBytes = interfaceBytes(string(text), "eth0")
	}
	return u
}

// interfaceBytes parses the bytes of a network device from the text of proc_pid_net(5). After the
// device name, there are eight numbers for received data and then those for sent data.
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
