package microvm

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/engine"
)

// countTimeout bounds a VMM's answer about its counters. A VMM answers at once, or it is busy and
// not worth waiting for.
const countTimeout = 500 * time.Millisecond

// Usage returns the counters of a machine's VMM, or nil if the VMM does not answer.
func (e *machines) Usage(r engine.Running) *instance.VMUsage {
	if r.PID == 0 || e.vm == nil {
		return nil
	}
	note, err := e.note(r.Instance.UID)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), countTimeout)
	defer cancel()
	vm, err := e.vm.Driver.Connect(ctx, note.Machine)
	if err != nil {
		return nil
	}
	defer vm.Close()
	found, err := vm.Metrics(ctx)
	if err != nil {
		e.host.Node().Logger.Debug("reading the counters of a VMM failed", "instance", r.Instance.UID, "err", err)
		return nil
	}
	u := &instance.VMUsage{
		VcpuNanos: found.VCPUNanos, Exits: found.Exits,
		DiskReadBytes: found.DiskReadBytes, DiskWriteBytes: found.DiskWriteBytes, DiskReads: found.DiskReads, DiskWrites: found.DiskWrites,
	}
	// The kernel counts the network traffic: that works for every VMM and does not trust the
	// guest.
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", r.PID)); err == nil {
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
