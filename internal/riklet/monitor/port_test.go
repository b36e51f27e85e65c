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

// procNet writes tables in the format of the kernel.
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
			"   1: 0100007F:1F90 00000000:0000 0A 0:0 0 0 65534 138\n" + // on the loopback alone
			"   7: 0100007F:0016 00000000:0000 0A 0:0 0 0 1000 143\n" + // there too, of another user
			"   8: 00000000:0BB8 00000000:0000 0A 0:0 0 0 472 144\n" + // of a user
			"   2: " + text4(own) + " 00000000:0000 0A 0:0 0 0 0 139\n" + // rik's own
			"   3: 0100007F:AA03 0100007F:C05A 01 0:0 0 0 0 140\n" + // connected
			"   4: 00000000:9000 00000000:0000 0A 0:0 0 0 0 141\n" + // the kernel's choice
			"   5: 00000000:0016 00000000:0000 0A 0:0 0 0 0 142\n" + // twice
			"nonsense\n   6: zz 00000000:0000 0A\n",
		"net/tcp6": head + "   0: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 0:0 0 0 33 1\n" +
			"   1: 00000000000000000000000001000000:1F91 00000000000000000000000000000000:0000 0A 0:0 0 0 0 1\n" +
			"   2: 0000000000000000FFFF00000100007F:1F92 00000000000000000000000000000000:0000 0A 0:0 0 0 0 1\n",
		"net/udp": head +
			"   0: 00000000:0035 00000000:0000 07 0:0 0 0 0 1\n" +
			"   1: " + text4(own) + " 00000000:0000 07 0:0 0 0 0 1\n" +
			"   2: 0100007F:1234 0100007F:0035 01 0:0 0 0 0 1\n" +
			"   3: 00000000:9001 00000000:0000 07 0:0 0 0 65534 1\n" + // perhaps a client
			"   4: 00000000:9002 00000000:0000 07 0:0 0 0 0 1\n" + // perhaps a client of root
			"   5: 00000000:7580 00000000:0000 07 0:0 0 0 65534 1\n",
		"net/sctp/eps": " ENDPT     SOCK   STY SST HBKT LPORT   UID INODE LADDRS\n" +
			" f1 f2 2   10  29   3868      0 1 127.0.0.1\n f3 f4 2   7  29   3869      0 1 127.0.0.1\n",
	})
	ports := NewPorts(proc)
	want := []Port{
		{"SCTP", 3868, true, true}, {"TCP", 22, false, true}, {"TCP", 22, true, true}, {"TCP", 80, false, true}, {"TCP", 3000, false, false},
		{"TCP", 8080, true, false}, {"TCP", 8081, true, true}, {"TCP", 8082, true, true}, {"UDP", 53, false, true}, {"UDP", 30080, false, false},
	}
	for i := range 2 {
		got, err := ports.Look(own)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("look %d (-want +got):\n%s", i+1, diff)
		}
		// The ports still exist at the second look.
		want = slices.Insert(want, 8, Port{"TCP", 0x9000, false, true})
		want = append(want, Port{"UDP", 0x9002, false, false})
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
	root := os.Geteuid() == 0
	if want := (Port{"TCP", of(tcp.Addr()).Port(), true, root}); !slices.Contains(got, want) {
		t.Errorf("Look() = %v, want %v in it", got, want)
	}
	// Its port is the kernel's choice, as a client's is.
	if want := (Port{"UDP", of(udp.LocalAddr()).Port(), true, false}); slices.Contains(got, want) != root {
		t.Errorf("Look() = %v, want %v in it: %v", got, want, root)
	}
	// In the kernel's format, so that it can be left out.
	if table, err := os.ReadFile("/proc/net/tcp"); err != nil || !strings.Contains(string(table), " "+text4(of(tcp.Addr()))+" ") {
		t.Errorf("%s is not in the kernel's table, %v", text4(of(tcp.Addr())), err)
	}
	if _, err := NewPorts(filepath.Join(t.TempDir(), "none")).Look(netip.AddrPort{}); err != nil {
		t.Errorf("Look() without any table = %v", err)
	}
}
