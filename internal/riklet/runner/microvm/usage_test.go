package microvm

import "testing"

func TestInterfaceBytes(t *testing.T) {
	t.Parallel()
	const text = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:      10       1    0    0    0     0          0         0       11       1    0    0    0     0       0          0
  eth0:18446744073709551615 3 0 0 0 0 0 0 42 4 0 0 0 0 0 0
  tap0:      20       1    0    0    0     0          0         0       21       1    0    0    0     0       0          0
 eth00: cut
`
	for name, want := range map[string][2]uint64{
		"lo": {10, 11}, "eth0": {18446744073709551615, 42}, "tap0": {20, 21}, "eth1": {}, "eth00": {}, "": {},
	} {
		if received, sent := interfaceBytes(text, name); received != want[0] || sent != want[1] {
			t.Errorf("interfaceBytes(%q) = %d, %d, want %v", name, received, sent, want)
		}
	}
}
