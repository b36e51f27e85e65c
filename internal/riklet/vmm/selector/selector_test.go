package selector

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/shim/launch"
	"rik.dev/rik/internal/riklet/vmm"
)

// one is a driver that records its calls. vmmtest tests real drivers.
type one struct {
	name    string
	unfit   error
	cleaned []string
}

func (o *one) Name() string { return o.name }
func (o *one) Probe(context.Context) (vmm.Capabilities, error) {
	return vmm.Capabilities{Version: o.name}, o.unfit
}
func (o *one) Validate(vmm.Machine) error { return nil }
func (o *one) Prepare(_ context.Context, m vmm.Machine) (launch.Process, error) {
	return launch.Process{Argv: []string{o.name}}, os.Mkdir(filepath.Join(m.Dir, "vmm"), 0o700)
}
func (o *one) Connect(context.Context, vmm.Machine) (vmm.VM, error) {
	return nil, errors.New(o.name)
}
func (o *one) Channel(vmm.Machine) guest.Channel { return guest.Channel{Socket: o.name} }
func (o *one) Cleanup(_ context.Context, m vmm.Machine) error {
	o.cleaned = append(o.cleaned, m.ID)
	if err := os.Remove(filepath.Join(m.Dir, "vmm")); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil // a second call does nothing
}

func TestMachineKeepsItsDriver(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	a, b := &one{name: "a", unfit: vmm.ErrUnavailable}, &one{name: "b"}
	d := Of(a, b)
	if c, err := d.Probe(ctx); err != nil || c.Version != "b" || d.Name() != "b" {
		t.Fatalf("Probe() = %+v, %v; %s", c, err, d.Name())
	}
	m := vmm.Machine{ID: "m", Dir: t.TempDir()}
	if _, err := d.Connect(ctx, m); !errors.Is(err, vmm.ErrGone) {
		t.Errorf("Connect() before there is one = %v", err)
	}
	if p, err := d.Prepare(ctx, m); err != nil || p.Argv[0] != "b" {
		t.Fatalf("Prepare() = %+v, %v", p, err)
	}
	later := Of(&one{name: "a"}, b) // now the other one is preferred
	if _, err := later.Probe(ctx); err != nil || later.Name() != "a" {
		t.Fatalf("Probe() = %v; %s", err, later.Name())
	}
	if c := later.Channel(m); c.Socket != "b" {
		t.Errorf("Channel() = %+v", c)
	}
	if _, err := Of(a).Connect(ctx, m); !errors.Is(err, vmm.ErrUnsupported) {
		t.Errorf("Connect() without its driver = %v", err)
	}
	for range 2 {
		if err := later.Cleanup(ctx, m); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(m.Dir); err != nil || len(left) > 0 || len(a.cleaned) > 0 || len(b.cleaned) != 2 {
		t.Errorf("left %v, %v; a cleaned %v, b cleaned %v", left, err, a.cleaned, b.cleaned)
	}
}

func TestNoUsableDriver(t *testing.T) {
	t.Parallel()
	why := errors.New("no such program")
	_, err := Of(&one{name: "a", unfit: why}, &one{name: "b", unfit: vmm.ErrUnavailable}).Probe(t.Context())
	if !errors.Is(err, why) || !errors.Is(err, vmm.ErrUnavailable) {
		t.Errorf("Probe() = %v, want the reasons of both", err)
	}
}

// After a restart of the node, no file has the name of a machine's driver, but files of the
// machine may be left.
func TestCleanupOfAnEarlierMachine(t *testing.T) {
	t.Parallel()
	a, b := &one{name: "a"}, &one{name: "b"}
	if err := Of(a, b).Cleanup(t.Context(), vmm.Machine{ID: "m", Dir: filepath.Join(t.TempDir(), "gone")}); err != nil {
		t.Fatal(err)
	}
	for _, o := range []*one{a, b} {
		if !slices.Equal(o.cleaned, []string{"m"}) {
			t.Errorf("driver %s cleaned up %q, want m", o.name, o.cleaned)
		}
	}
}
