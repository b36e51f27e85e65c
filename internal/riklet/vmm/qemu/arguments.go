package qemu

import (
	"encoding/json"
	"fmt"
	"strconv"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/vmm"
)

const (
	// portID is the name of the guest's port in QEMU's events.
	portID    = "guest-port"
	balloonID = "balloon"
	// translationsMiB limits QEMU's cache of translated code. Its default is a gigabyte, much
	// more than the machines need.
	translationsMiB = 128
	// timerHertz is the frequency of an emulated local APIC's timer. QEMU gives it a bus of 1
	// GHz (hw/intc/apic_common.c), and the kernel sets it to count every sixteenth tick
	// (APIC_DIVISOR in arch/x86/kernel/apic/apic.c).
	timerHertz = 1_000_000_000 / 16
)

// arguments returns QEMU's command line for a machine, without the program. All names in it are
// relative to the VMM's directory.
func arguments(m vmm.Machine, f *found) []string {
	a := machineArguments(m, f)
	for i, d := range m.Disks {
		a = append(a, diskArguments(i, d)...)
	}
	for i, n := range m.NICs {
		a = append(a, nicArguments(i, n)...)
	}
	return append(a, channelArguments()...)
}

func machineArguments(m vmm.Machine, f *found) []string {
	accel, cpu := "kvm", "host"
	if f.Capabilities.Accelerator == TCG {
		accel, cpu = fmt.Sprintf("tcg,tb-size=%d", translationsMiB), "max"
	}
	a := []string{
		"-name", "rik-" + m.ID,
		"-nodefaults", "-no-user-config", "-nographic", "-no-reboot", "-S",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-machine", f.platform().machine,
		"-accel", accel,
		"-cpu", cpu,
		"-smp", strconv.Itoa(m.VCPUs),
		"-m", strconv.FormatInt(mebibytes(m.MemoryBytes), 10) + "M",
		"-kernel", kernelFile,
		"-append", commandLine(m, f),
		"-chardev", "stdio,id=console,signal=off",
		"-serial", "chardev:console",
		"-chardev", "socket,id=qmp,path=" + qmpSocket + ",server=on,wait=off",
		"-mon", "chardev=qmp,mode=control",
	}
	if m.Initramfs != "" {
		a = append(a, "-initrd", initrdFile)
	}
	if m.Restore != "" {
		a = append(a, "-incoming", "defer")
	}
	return a
}

// mebibytes rounds down: a machine never gets more than it was assigned.
func mebibytes(b int64) int64 { return b >> 20 }

// commandLine returns the kernel's command line.
//
// In software emulation the kernel of a PC cannot measure its time-stamp counter. One of six boots
// then waits forever for the timer that the kernel uses instead. Therefore tsc_early_khz sets the
// frequency of the counter.
//
// tsc=reliable turns off the check of the counter. The kernel could compare it only with its
// count of ticks, and an emulated machine misses some ticks. The kernel would then mark the
// counter as unstable and tick all the time, even if idle, and its clock would lag
// (Documentation/admin-guide/kernel-parameters.txt, tsc=).
//
// The kernel has no parameter for the frequency of its timer, so the init gets it. The init
// powers off a machine whose kernel has measured another value because QEMU got no processor
// time.
func commandLine(m vmm.Machine, f *found) string {
	platform, emulated := f.platform(), f.Capabilities.Accelerator == TCG
	line := platform.commandLine
	if emulated && f.TSCKilohertz > 0 {
		line += fmt.Sprintf(" tsc_early_khz=%d tsc=reliable", f.TSCKilohertz)
	}
	if emulated {
		line += " cryptomgr.notests=1" // a fifth of a boot: the kernel tests all its ciphers
	}
	if emulated && platform.measured {
		line += fmt.Sprintf(" %s=%d", guest.TimerParameter, timerHertz)
	}
	if emulated && platform.emulated != "" {
		line += " " + platform.emulated
	}
	if m.CommandLine != "" {
		line += " " + m.CommandLine
	}
	return line
}

// diskArguments returns a chain of the file, its format, its limits and the device. Each of them
// must pass discards on, so that the node gets the space of deleted files back. Values are
// encoded as JSON, so that they cannot be parsed as other options.
func diskArguments(index int, d vmm.Disk) []string {
	file, raw, device := fmt.Sprintf("file%d", index), fmt.Sprintf("raw%d", index), fmt.Sprintf("disk%d", index)
	top := raw
	a := []string{
		"-blockdev", object{"node-name": file, "driver": "file", "filename": diskPrefix + d.ID, "read-only": d.ReadOnly,
			// Many machines share the file of an image, so it cannot be locked. A writable disk
			// has only one machine.
			"locking": locking(d), "discard": "unmap"}.String(),
		"-blockdev", object{"node-name": raw, "driver": "raw", "file": file, "read-only": d.ReadOnly, "discard": "unmap"}.String(),
	}
	if d.BytesPerSecond > 0 || d.OperationsPerSecond > 0 {
		top = fmt.Sprintf("limited%d", index)
		group := fmt.Sprintf("limits%d", index)
		a = append(a,
			"-object", object{"qom-type": "throttle-group", "id": group, "limits": limits(d)}.String(),
			"-blockdev", object{"node-name": top, "driver": "throttle", "throttle-group": group, "file": raw, "read-only": d.ReadOnly, "discard": "unmap"}.String())
	}
	return append(a, "-device", object{
		"driver": "virtio-blk-pci", "id": device, "drive": top, "serial": d.ID, "disable-legacy": "on",
		// An error of the host's disk becomes an error in the guest. With QEMU's default, a full
		// disk would stop the whole machine.
		"rerror": "report", "werror": "report",
	}.String())
}

func locking(d vmm.Disk) string {
	if d.ReadOnly {
		return "off"
	}
	return "auto"
}

func limits(d vmm.Disk) object {
	l := object{}
	if d.BytesPerSecond > 0 {
		l["bps-total"] = d.BytesPerSecond
	}
	if d.OperationsPerSecond > 0 {
		l["iops-total"] = d.OperationsPerSecond
	}
	return l
}

func nicArguments(index int, n vmm.NIC) []string {
	id := fmt.Sprintf("nic%d", index)
	device := object{"driver": "virtio-net-pci", "id": id + "-device", "netdev": id, "mac": n.MAC, "disable-legacy": "on"}
	if n.MTU > 0 {
		device["host_mtu"] = n.MTU
	}
	return []string{
		"-netdev", object{"type": "tap", "id": id, "ifname": n.TAP, "script": "no", "downscript": "no", "vhost": false, "vnet_hdr": true}.String(),
		"-device", device.String(),
	}
}

func channelArguments() []string {
	return []string{
		"-device", "virtio-serial-pci,id=ports,disable-legacy=on,max_ports=2",
		"-chardev", "socket,id=guest,path=" + guestSocket + ",server=on,wait=off",
		"-device", "virtserialport,bus=ports.0,chardev=guest,id=" + portID + ",name=" + guest.PortName,
		"-device", "virtio-rng-pci,disable-legacy=on",
		"-device", "virtio-balloon-pci,disable-legacy=on,id=" + balloonID,
	}
}

// object is a value on QEMU's command line.
type object map[string]any

// String returns the object as JSON, with sorted keys.
func (o object) String() string {
	b, err := json.Marshal(o)
	if err != nil {
		panic("programmer error: a QEMU option is not JSON: " + err.Error())
	}
	return string(b)
}
