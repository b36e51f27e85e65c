package monitor

import (
	"strings"
	"testing"
)

func TestAddressOf(t *testing.T) {
	t.Parallel()
	if got, err := AddressOf("lo"); err != nil || got != "127.0.0.1" {
		t.Errorf("AddressOf(lo) = %q, %v", got, err)
	}
	if _, err := AddressOf("nosuch0"); err == nil || !strings.Contains(err.Error(), "lo") {
		t.Errorf("AddressOf(nosuch0) = %v, want the interfaces of this machine", err)
	}
}
