// Package selector is the vmm.Driver of a node with several drivers. The first driver that can
// run guests here creates every new machine. Each machine stays with the driver that created it,
// even if a later agent chooses another.
package selector

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/shim/launch"
	"rik.dev/rik/internal/riklet/vmm"
)

// Driver chooses one of several drivers.
type Driver struct {
	drivers []vmm.Driver

	mu     sync.Mutex // held while probing
	chosen vmm.Driver
}

var _ vmm.Driver = (*Driver)(nil)

// Of returns a driver that chooses among at least one; the first one has the highest preference.
func Of(drivers ...vmm.Driver) *Driver { return &Driver{drivers: drivers} }

// Name returns the name of the chosen driver, or the names of all while none is chosen.
func (d *Driver) Name() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.chosen != nil {
		return d.chosen.Name()
	}
	names := make([]string, len(d.drivers))
	for i, one := range d.drivers {
		names[i] = one.Name()
	}
	return strings.Join(names, " or ")
}

// Probe tries one driver after the other. If none works, the error has the reason of each.
func (d *Driver) Probe(ctx context.Context) (vmm.Capabilities, error) {
	_, capabilities, err := d.choose(ctx)
	return capabilities, err
}

func (d *Driver) choose(ctx context.Context) (vmm.Driver, vmm.Capabilities, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	candidates := d.drivers
	if d.chosen != nil {
		candidates = []vmm.Driver{d.chosen}
	}
	var errs []error
	for _, one := range candidates {
		capabilities, err := one.Probe(ctx)
		if err == nil {
			d.chosen = one
			return one, capabilities, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", one.Name(), err))
	}
	return nil, vmm.Capabilities{}, errors.Join(errs...)
}

// Validate uses the driver that would create the machine, or all drivers while none is chosen.
func (d *Driver) Validate(m vmm.Machine) error {
	d.mu.Lock()
	chosen := d.chosen
	d.mu.Unlock()
	if chosen != nil {
		return chosen.Validate(m)
	}
	for _, one := range d.drivers {
		if err := one.Validate(m); err != nil {
			return fmt.Errorf("%s: %w", one.Name(), err)
		}
	}
	return nil
}

// maker is the file in a machine's directory with the name of its driver.
const maker = "driver"

// Prepare makes the chosen driver create the machine.
func (d *Driver) Prepare(ctx context.Context, m vmm.Machine) (launch.Process, error) {
	one, _, err := d.choose(ctx)
	if err != nil {
		return launch.Process{}, err
	}
	if err := one.Validate(m); err != nil {
		return launch.Process{}, err
	}
	if err := os.WriteFile(filepath.Join(m.Dir, maker), []byte(one.Name()), 0o600); err != nil {
		return launch.Process{}, fmt.Errorf("recording the machine's driver: %w", err)
	}
	return one.Prepare(ctx, m)
}

// of finds the driver that created a machine.
func (d *Driver) of(m vmm.Machine) (vmm.Driver, error) {
	name, err := os.ReadFile(filepath.Join(m.Dir, maker))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: machine %s does not exist", vmm.ErrGone, m.ID)
	}
	if err != nil {
		return nil, err
	}
	for _, one := range d.drivers {
		if one.Name() == string(name) {
			return one, nil
		}
	}
	return nil, fmt.Errorf("%w: machine %s was created by %q, which this node does not use now: start the riklet with --vmm=%s until the machine is removed", vmm.ErrUnsupported, m.ID, name, name)
}

// Connect uses the driver that created the machine.
func (d *Driver) Connect(ctx context.Context, m vmm.Machine) (vmm.VM, error) {
	one, err := d.of(m)
	if err != nil {
		return nil, err
	}
	return one.Connect(ctx, m)
}

// Channel returns the channel of the driver that created the machine, or an empty one without a
// driver.
func (d *Driver) Channel(m vmm.Machine) guest.Channel {
	one, err := d.of(m)
	if err != nil {
		return guest.Channel{}
	}
	return one.Channel(m)
}

// Cleanup makes the driver that created the machine remove it. The file with the driver's name
// is written first and removed last. It is in memory, so it is lost when the node restarts,
// while other files of the machine may still exist on disk. Without it, every driver removes
// what it finds.
func (d *Driver) Cleanup(ctx context.Context, m vmm.Machine) error {
	one, err := d.of(m)
	if errors.Is(err, vmm.ErrGone) {
		var errs []error
		for _, each := range d.drivers {
			errs = append(errs, each.Cleanup(ctx, m))
		}
		return errors.Join(errs...)
	}
	if err != nil {
		return err
	}
	if err := one.Cleanup(ctx, m); err != nil {
		return err
	}
	return os.Remove(filepath.Join(m.Dir, maker))
}
