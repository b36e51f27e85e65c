package qemu

import (
	"encoding/json"
	"fmt"
	"strconv"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/vmm"
)

const (
	// console makes the first serial port the guest's console, and keeps it short: each
	// character is a return to QEMU. A guest that panics or restarts ends its VMM
	// (-no-reboot), and the supervisor sees an end.
	console = "console=ttyS0 quiet panic=-1 reboot=t"
	// portID names the guest's port in QEMU's events.
	portID    = "guest-port"
	balloonID = "balloon"
	// translations bounds what QEMU keeps of translated code: its default is a
	// gigabyte, far beyond the machines that we run.
	translationsMiB = 128
	// timerHertz is how often an emulated local APIC's timer counts: QEMU has a bus of
	// 1 GHz for it (hw/intc/apic_common.c), and the kernel has it count every sixteenth
	// (APIC_DIVISOR in arch/x86/kernel/apic/apic.c).
	timerHertz = 1_000_000_000 / 16
)

// arguments is QEMU's command line for a machine, without the program. All names in it
// are relative to the VMM's directory.
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
		// Without the timers of a PC the kernel cannot calibrate its clock in software
		// emulation, and does not boot.
		"-machine", "microvm,pcie=on,pit=on,pic=on,rtc=on,isa-serial=on,x-option-roms=off",
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

// mebibytes rounds down: a machine never gets more than it was given.
func mebibytes(b int64) int64 { return b >> 20 }

// commandLine is the kernel's. In software emulation the kernel cannot measure its
// time-stamp counter, and of six boots one waits for ever for a timer that it then has
// to use instead: it is told how fast the counter is. Nor is the counter to be watched:
// all there is to compare it with is the count of ticks, of which an emulated machine
// misses some, and the kernel would then blame the counter and tick for ever, idle or
// not, and its clock would lag (Documentation/admin-guide/kernel-parameters.txt, tsc=).
// How fast its timer is the kernel cannot be told; so the init is, and ends a machine
// whose kernel measured something else because QEMU was not given a processor meanwhile.
func commandLine(m vmm.Machine, f *found) string {
	line := console
	if f.Capabilities.Accelerator == TCG && f.TSCKilohertz > 0 {
		line += fmt.Sprintf(" tsc_early_khz=%d tsc=reliable", f.TSCKilohertz)
	}
	if f.Capabilities.Accelerator == TCG {
		line += " cryptomgr.notests=1" // a fifth of a boot: the kernel tries all its ciphers
		line += fmt.Sprintf(" %s=%d", guest.TimerParameter, timerHertz)
	}
	if m.CommandLine != "" {
		line += " " + m.CommandLine
	}
	return line
}

// diskArguments chain the file, its format, its limits and the device. Each of them has to
// pass discards on for the room of deleted files to return to the node. Values go in as
// JSON: nothing in them can be taken for another option.
func diskArguments(index int, d vmm.Disk) []string {
	file, raw, device := fmt.Sprintf("file%d", index), fmt.Sprintf("raw%d", index), fmt.Sprintf("disk%d", index)
	top := raw
	a := []string{
		"-blockdev", object{"node-name": file, "driver": "file", "filename": diskPrefix + d.ID, "read-only": d.ReadOnly,
			// The images of many machines are one file: locks would not allow that,
			// and a writable one has one machine.
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
		// An error of the host's disk is the guest's error. QEMU's default would
		// hold the whole machine when a disk is full.
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

// String is the object as JSON, its keys in order.
func (o object) String() string {
	b, err := json.Marshal(o)
	if err != nil {
		panic("programmer error: a QEMU option is not JSON: " + err.Error())
	}
	return string(b)
}
