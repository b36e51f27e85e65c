package node

import (
	"strings"
	"testing"
)

func TestAddressOf(t *testing.T) {
	t.Parallel()
	if got, err := addressOf("lo"); err != nil || got != "127.0.0.1" {
		t.Errorf("addressOf(lo) = %q, %v", got, err)
	}
	if _, err := addressOf("nosuch0"); err == nil || !strings.Contains(err.Error(), "lo") {
		t.Errorf("addressOf(nosuch0) = %v, want the interfaces that there are", err)
	}
}

// Not parallel: it changes the environment.
func TestInterfaceOfThePapers(t *testing.T) {
	t.Setenv("IFACE", "lo")
	t.Setenv("IFACE_IP", "")
	o := DefaultOptions()
	_ = o.Validate() // other problems of the machine do not matter here
	if o.Address != "127.0.0.1" {
		t.Errorf("with IFACE=lo the address is %q", o.Address)
	}
	t.Setenv("IFACE_IP", "192.0.2.7")
	o = DefaultOptions()
	_ = o.Validate()
	if o.Address != "192.0.2.7" {
		t.Errorf("with IFACE_IP too the address is %q, want that", o.Address)
	}
}
