package node

import "testing"

// Not parallel: it changes the environment.
func TestInterfaceFromTheEnvironment(t *testing.T) {
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
