package facts

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/doctor"
	"rik.dev/rik/internal/portowner"
	"rik.dev/rik/internal/riklet/network/bridge"
	"rik.dev/rik/internal/testkit/apiprocess"
)

// config is that of a server with directories in a temporary one.
func config(t *testing.T) Config {
	t.Helper()
	dir := t.TempDir()
	return Config{
		Role: doctor.RoleServer, DataDir: dir + "/data", StateDir: dir + "/state", RunDir: dir + "/run", CgroupParent: "/rik-doctor-test",
		Claims: []bridge.ClusterRange{{Prefix: netip.MustParsePrefix("10.62.0.0/16")}},
		Ports:  []doctor.Port{{ID: "port-api", Number: 1, Protocol: portowner.TCP, Purpose: "the API"}},
		Programs: []doctor.Program{
			{Name: "sh", Path: "/bin/sh"}, {Name: "no-such-program", Part: true, Required: "nothing works"},
		},
	}
}

// TestGather makes sure that the facts of this machine are found, with and without root.
func TestGather(t *testing.T) {
	t.Parallel()
	m := Gather(t.Context(), config(t))
	report, err := doctor.Check(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	if m.Kernel.Release == "" || m.Hostname == "" || m.Distribution.ID == "" || m.Limits.PIDMax == 0 || m.Limits.OpenFiles == 0 || len(m.Cgroup.Controllers) == 0 {
		t.Errorf("facts are missing: kernel %q, host %q, distribution %+v, limits %+v, cgroups %+v", m.Kernel.Release, m.Hostname, m.Distribution, m.Limits, m.Cgroup)
	}
	for _, id := range doctor.IDs() {
		i := slices.IndexFunc(report.Findings, func(f doctor.Finding) bool { return f.ID == id })
		ported := strings.HasPrefix(id, "port-") && id != "port-api"
		if i < 0 && !ported {
			t.Errorf("no finding has the ID %s", id)
		}
	}
	for _, d := range m.Directories {
		if d.Err != "" || d.Exists || d.MountPoint == "" || d.FileSystem == "" || d.TotalBytes == 0 {
			t.Errorf("directory %+v", d)
		}
	}
	i := slices.IndexFunc(report.Findings, func(f doctor.Finding) bool { return f.ID == "program-missing" })
	if f := report.Findings[i]; f.Severity != doctor.Error || f.Affects != "nothing works" {
		t.Errorf("a missing program: %+v", f)
	}
}

// TestServer asks a real API server, with and without its authority.
func TestServer(t *testing.T) {
	t.Parallel()
	server := apiprocess.Start(t)
	cfg := config(t)
	cfg.Server, cfg.DataDir, cfg.WorkersPort, cfg.NodesPort = server.Config.Host, server.DataDir, 1, 1
	m := Gather(t.Context(), cfg)
	s := m.Server
	if !s.Address.Works() || !s.Endpoints[0].Connect.Works() || !s.Verified.Works() || s.Version == "" || m.Clock.Skew == nil || m.Clock.Skew.Abs() > 2*time.Second {
		t.Errorf("server %+v, skew %v", s, m.Clock.Skew)
	}
	if e := s.Endpoints[1]; e.Address != "127.0.0.1:1" || e.Connect.Err != "connection refused" {
		t.Errorf("a closed port: %+v", e)
	}
	for _, c := range m.Certificates {
		if c.Err != "" || c.NotAfter.IsZero() || c.Kind == doctor.KindServer && len(c.Names) == 0 {
			t.Errorf("certificate %+v", c)
		}
	}
	if len(m.Certificates) < 3 || len(m.Exposed) != 0 {
		t.Errorf("%d certificates, exposed keys %v", len(m.Certificates), m.Exposed)
	}
	// The authority of another cluster does not verify it.
	other := config(t)
	if err := issue(t.Context(), other.DataDir+"/"+pkiDir, time.Hour); err != nil {
		t.Fatal(err)
	}
	other.Server = cfg.Server
	if s := Gather(t.Context(), other).Server; !s.Verified.Failed() || !strings.Contains(s.Verified.Err, "certificate signed by unknown authority") {
		t.Errorf("with another authority: %+v", s.Verified)
	}
	// Before it has joined, a node knows no authority.
	other = config(t)
	other.Server = cfg.Server
	if s := Gather(t.Context(), other).Server; s.Verified.Tried || s.Presented.NotAfter.IsZero() {
		t.Errorf("without an authority: %+v", s)
	}
}

func TestParseConfig(t *testing.T) {
	t.Parallel()
	got := parseConfig(strings.NewReader("# Linux\nCONFIG_VETH=m\n# CONFIG_VXLAN is not set\nCONFIG_LOCALVERSION=\"-x\"\n\n"))
	want := map[string]string{"CONFIG_VETH": "m", "CONFIG_VXLAN": "n", "CONFIG_LOCALVERSION": `"-x"`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("parseConfig (-want +got):\n%s", diff)
	}
	for file, want := range map[string]string{"kernel/net/nf-x.ko.xz": "nf_x", "kernel/drivers/net/veth.ko": "veth"} {
		if got := moduleName(file); got != want {
			t.Errorf("moduleName(%q) = %q, want %q", file, got, want)
		}
	}
}

func TestUseOwn(t *testing.T) {
	t.Parallel()
	variants := []doctor.Variant{{Name: "legacy", Used: true, Others: true}, {Name: "nf_tables", Own: true}}
	useOwn(variants)
	if variants[0].Used || !variants[1].Used {
		t.Errorf("with rik's rules in the other variant: %+v", variants)
	}
	variants[1].Own = false
	useOwn(variants)
	if !variants[1].Used {
		t.Errorf("without rules of rik: %+v", variants)
	}
}

// TestMeaning has the expressions of rules as nft(8) encodes them.
func TestMeaning(t *testing.T) {
	t.Parallel()
	accept, drop := &expr.Verdict{Kind: expr.VerdictAccept}, &expr.Verdict{Kind: expr.VerdictDrop}
	eq := func(data ...byte) *expr.Cmp { return &expr.Cmp{Op: expr.CmpOpEq, Data: data} }
	source := func(length uint32) *expr.Payload {
		return &expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: length}
	}
	port := &expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
	protocol := &expr.Meta{Key: expr.MetaKeyL4PROTO}
	for name, tc := range map[string]struct {
		exprs   []expr.Any
		accepts []string
		drops   bool
	}{
		"a range that ends with a byte": {[]expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO}, eq(2), source(2), eq(10, 62), accept}, []string{"saddr 10.62.0.0/16"}, false},
		"a range with a mask":           {[]expr.Any{source(4), &expr.Bitwise{Mask: []byte{255, 240, 0, 0}}, eq(172, 16, 0, 0), accept}, []string{"saddr 172.16.0.0/12"}, false},
		"a port":                        {[]expr.Any{protocol, eq(unix.IPPROTO_TCP), port, eq(0x13, 0x88), &expr.Counter{}, accept}, []string{"tcp 5000"}, false},
		"a port of two protocols, on a device": {
			[]expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME}, eq([]byte("rik0\x00\x00")...), protocol, &expr.Lookup{}, port, eq(0x13, 0x59), accept},
			[]string{"rik0 tcp 4953", "rik0 udp 4953"}, false,
		},
		"a state":                {[]expr.Any{&expr.Ct{Key: expr.CtKeySTATE}, eq(2), source(2), eq(10, 62), accept}, nil, false},
		"not a range":            {[]expr.Any{source(2), &expr.Cmp{Op: expr.CmpOpNeq, Data: []byte{10, 62}}, accept}, nil, false},
		"everything is dropped":  {[]expr.Any{&expr.Counter{}, drop}, nil, true},
		"everything is rejected": {[]expr.Any{&expr.Reject{}}, nil, true},
		"a part is dropped":      {[]expr.Any{source(2), eq(10, 62), drop}, nil, false},
		"a log":                  {[]expr.Any{&expr.Log{}}, nil, false},
	} {
		accepts, drops := meaning(tc.exprs)
		if !slices.Equal(accepts, tc.accepts) || drops != tc.drops {
			t.Errorf("%s: meaning = %q, %v, want %q, %v", name, accepts, drops, tc.accepts, tc.drops)
		}
	}
}
