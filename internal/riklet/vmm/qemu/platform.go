package qemu

import (
	"runtime"

	"rik.dev/rik/internal/riklet/vmm"
)

// platform is what differs between the architectures of guests.
type platform struct {
	// program is QEMU's, and debian is the package that has it.
	program, debian string
	machine         string
	// commandLine has the kernel's console, and the way to reset the machine. The console is
	// quiet, because each character is an exit to QEMU. If a guest panics or restarts, its VMM
	// ends (-no-reboot), and the supervisor sees the exit.
	commandLine string
	// emulated is what the kernel needs in software emulation.
	emulated string
	// measured means that the kernel measures its clock and its timers.
	measured bool
}

// platforms are the supported ones, by the GOARCH value.
var platforms = map[string]platform{
	"amd64": {
		program: "qemu-system-x86_64", debian: "qemu-system-x86",
		// Without the timers of a PC, the kernel cannot calibrate its clock in software
		// emulation, and does not boot.
		machine:     "microvm,pcie=on,pit=on,pic=on,rtc=on,isa-serial=on,x-option-roms=off",
		commandLine: "console=ttyS0 quiet panic=-1 reboot=t",
		measured:    true,
	},
	"arm64": {
		program: "qemu-system-aarch64", debian: "qemu-system-arm",
		// A GIC of version 2 has only 8 processors. "max" is the newest version that KVM has on
		// this machine. The kernel reads the devices from the device tree.
		machine: "virt,gic-version=max,acpi=off",
		// By default the kernel reserves 64 MiB for devices that a microVM does not have.
		commandLine: "console=ttyAMA0 quiet panic=-1 cma=0",
		// Software emulation computes the signatures of pointers with a cipher. That is two thirds
		// of a boot, and QEMU before 6.0 has no option against it. The frequency of the timer is
		// in a register, so the kernel measures nothing.
		emulated: "arm64.nopauth",
	},
}

// Program returns the name of QEMU's program for guests of this machine's architecture. It is
// searched on the PATH.
func Program() string { return platforms[known(runtime.GOARCH)].program }

// known returns an architecture that has a platform. On other machines, the driver looks for the
// program of amd64 and reports what is missing.
func known(architecture string) string {
	if _, found := platforms[architecture]; found {
		return architecture
	}
	return "amd64"
}

// accelerators returns those that a probe tries, in this order. KVM runs only guests of the
// machine's own architecture.
func (c Config) accelerators() []string {
	switch {
	case c.Accelerator != "":
		return []string{c.Accelerator}
	case c.Architecture != runtime.GOARCH:
		return []string{TCG}
	}
	return []string{KVM, TCG}
}

// newFound returns the result of a probe that has not booted a guest yet.
func (c Config) newFound(binary, version, accelerator string) *found {
	f := &found{
		Binary: binary, Architecture: c.Architecture,
		Capabilities: vmm.Capabilities{Version: version, Accelerator: accelerator, Guest: true, Snapshot: true, DiskLimits: true},
	}
	if f.platform().measured {
		f.TSCKilohertz = tscKilohertz()
	}
	return f
}

func (f *found) platform() platform { return platforms[known(f.Architecture)] }
