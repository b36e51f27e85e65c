package qemu

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/vmm"
	"rik.dev/rik/internal/riklet/vmm/vmmtest"
	"rik.dev/rik/internal/testkit/netnstest"
	"rik.dev/rik/internal/testkit/privileged"
)

// TestPrivilegedTAP checks that a VMM without root can attach to a TAP that it owns, and that
// the guest answers on it.
func TestPrivilegedTAP(t *testing.T) {
	privileged.Require(t)
	if !netnstest.Alone(t) {
		return
	}
	testTAP(t, newDriver(t, Config{Accelerator: TCG}))
}

// TestPrivilegedTAPForeign does the same for the other architecture, with the smallest memory.
func TestPrivilegedTAPForeign(t *testing.T) {
	privileged.Require(t)
	if !netnstest.Alone(t) {
		return
	}
	testTAP(t, newForeignDriver(t))
}

func testTAP(t *testing.T, d *Driver) {
	t.Helper()
	m := vmmtest.Machine(t)
	m.Kernel, m.Initramfs, m.MemoryBytes = d.config.Kernel, d.config.Initramfs, vmm.MinMemory
	m.NICs = []vmm.NIC{{TAP: "tap0", MAC: "02:00:00:00:00:09", MTU: 1400}}
	uid := strconv.FormatUint(uint64(m.UID), 10)
	for _, argv := range [][]string{
		{"tuntap", "add", "tap0", "mode", "tap", "user", uid, "vnet_hdr"},
		{"address", "add", "10.9.9.1/24", "dev", "tap0"},
		{"link", "set", "tap0", "up"},
	} {
		if out, err := exec.CommandContext(t.Context(), "ip", argv...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", argv, err, out)
		}
	}
	v := vmmtest.Up(t, d, m, func(ctx context.Context, c guest.Channel) error { return configure(ctx, c, m.NICs[0].MAC) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// No program listens on that port. The guest's refusal is an answer.
	_, err := new(net.Dialer).DialContext(ctx, "tcp", "10.9.9.2:9")
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connecting to the guest = %v, want it to refuse", err)
	}
	powerOff(ctx, t, v, d.Channel(m))
}

// powerOff makes the init shut the guest down, and waits for the end of the VMM.
func powerOff(ctx context.Context, t *testing.T, v vmm.VM, c guest.Channel) {
	t.Helper()
	session, err := guest.Connect(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if err := guest.New(session.Open).Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	for {
		state, err := v.State(ctx)
		if errors.Is(err, vmm.ErrGone) {
			return
		}
		if err != nil {
			t.Fatalf("State() after the guest powered off = %q, %v, want ErrGone soon", state, err)
		}
		time.Sleep(poll) // QEMU notifies only connected clients
	}
}

func configure(ctx context.Context, c guest.Channel, mac string) error {
	session, err := guest.Connect(ctx, c)
	if err != nil {
		return err
	}
	defer session.Close()
	return guest.New(session.Open).Configure(ctx, guest.Config{
		Hostname: "guest", Time: time.Now(), Entropy: make([]byte, 32),
		Interfaces: []guest.Interface{{MAC: mac, Address: netip.MustParsePrefix("10.9.9.2/24"), Gateway: netip.MustParseAddr("10.9.9.1"), MTU: 1400}},
	})
}
