package vmm_test

import (
	"context"
	"fmt"
	"os/exec"

	"rik.dev/rik/internal/riklet/vmm"
)

// A driver never starts the VMM. The caller runs the process that Prepare returns, and connects
// to it.
func ExampleDriver() {
	run := func(ctx context.Context, driver vmm.Driver, m vmm.Machine) error {
		if err := driver.Validate(m); err != nil {
			return err
		}
		process, err := driver.Prepare(ctx, m)
		if err != nil {
			return err
		}
		defer driver.Cleanup(context.WithoutCancel(ctx), m)
		// In rik the supervisor of the instance runs the process.
		command := exec.CommandContext(ctx, process.Argv[0], process.Argv[1:]...)
		if err := command.Start(); err != nil {
			return err
		}
		machine, err := driver.Connect(ctx, m)
		if err != nil {
			return err
		}
		defer machine.Close()
		if err := machine.Start(ctx); err != nil {
			return err
		}
		return command.Wait()
	}
	_ = run
}

// Validate reports all problems at once.
func ExampleMachine_Validate() {
	m := vmm.Machine{ID: "web 1", VCPUs: 64, MemoryBytes: 1 << 20}
	fmt.Println(m.Validate())
	// Output:
	// invalid machine: the ID "web 1" is not 1 to 63 letters, digits and hyphens
	// the directory: "" is not a clean absolute path
	// the kernel: "" is not a clean absolute path
	// 64 vCPUs: a machine needs 1 to 32
	// 1048576 bytes of memory: a machine needs 100663296 to 1099511627776
	// the VMM would run as user 0 and group 0: it must have its own, not root's
}
