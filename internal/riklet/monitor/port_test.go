package monitor

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// procNet writes the kernel's tables as it would.
func procNet(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestPorts(t *testing.T) {
	t.Parallel()
	const head = "  sl  local_address rem_address   st tx_queue rx_queue\n"
	own := netip.MustParseAddrPort("10.62.1.1:53")
	proc := procNet(t, map[string]string{
		"sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
		"net/tcp": head +
			"   0: 00000000:0016 00000000:0000 0A 0:0 0 0 0 137\n" +
			"   1: 0100007F:1F90 00000000:0000 0A 0:0 0 0 0 138\n" + // also on the loopback alone
			"   2: " + text4(own) + " 00000000:0000 0A 0:0 0 0 0 139\n" + // ours
			"   3: 0100007F:AA03 0100007F:C05A 01 0:0 0 0 0 140\n" + // connected
			"   4: 00000000:9000 00000000:0000 0A 0:0 0 0 0 141\n" + // the kernel's choice
			"   5: 00000000:0016 00000000:0000 0A 0:0 0 0 0 142\n" + // twice
			"nonsense\n   6: zz 00000000:0000 0A\n",
		"net/tcp6": head + "   0: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 0:0\n",
		"net/udp": head +
			"   0: 00000000:0035 00000000:0000 07 0:0\n" +
			"   1: " + text4(own) + " 00000000:0000 07 0:0\n" +
			"   2: 0100007F:1234 0100007F:0035 01 0:0\n",
		"net/sctp/eps": " ENDPT     SOCK   STY SST HBKT LPORT   UID INODE LADDRS\n" +
			" f1 f2 2   10  29   3868      0 1 127.0.0.1\n f3 f4 2   7  29   3869      0 1 127.0.0.1\n",
	})
	ports := NewPorts(proc)
	want := []Port{{"SCTP", 3868}, {"TCP", 22}, {"TCP", 80}, {"TCP", 8080}, {"UDP", 53}}
	for i := range 2 {
		got, err := ports.Look(own)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("look %d (-want +got):\n%s", i+1, diff)
		}
		want = slices.Insert(want, 4, Port{"TCP", 0x9000}) // it is there to stay
	}
}

func TestPortsOfThisMachine(t *testing.T) {
	t.Parallel()
	tcp, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	of := func(a net.Addr) netip.AddrPort { return netip.MustParseAddrPort(a.String()) }
	ports := NewPorts("/proc")
	look := func(own netip.AddrPort) []Port {
		t.Helper()
		got, err := ports.Look(own)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	look(netip.AddrPort{})
	got := look(netip.AddrPort{})
	for _, want := range []Port{{"TCP", of(tcp.Addr()).Port()}, {"UDP", of(udp.LocalAddr()).Port()}} {
		if !slices.Contains(got, want) {
			t.Errorf("Look() = %v, want %v in it", got, want)
		}
	}
	// As the kernel writes it, so that it can be left out.
	if table, err := os.ReadFile("/proc/net/tcp"); err != nil || !strings.Contains(string(table), " "+text4(of(tcp.Addr()))+" ") {
		t.Errorf("%s is not in the kernel's table, %v", text4(of(tcp.Addr())), err)
	}
	if _, err := NewPorts(filepath.Join(t.TempDir(), "none")).Look(netip.AddrPort{}); err != nil {
		t.Errorf("Look() without any table = %v", err)
	}
}
