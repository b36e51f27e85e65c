package monitor

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/shirou/gopsutil/v4/cpu"
	"google.golang.org/protobuf/testing/protocmp"
	"k8s.io/apimachinery/pkg/api/resource"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/testkit/golden"
)

// golden compares with testdata/name.
func compareJSON(t *testing.T, name string, got any) {
	t.Helper()
	text, err := json.MarshalIndent(got, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, '\n')
	golden.Compare(t, name, text)
}

// The numbers are those of the papers.
func TestNodeResourcesShape(t *testing.T) {
	t.Parallel()
	info := &rikv1alpha1.NodeInfo{
		CPUs: 12, MemoryBytes: 34359738368, DiskBytes: 536870912000, Distribution: "Debian", DistributionVersion: "10",
		OperatingSystem: "linux", Architecture: "amd64", KernelVersion: "4.19.0-11-amd64",
		Hostname: "node-639d7", InternalAddress: "10.114.0.8", ExternalAddress: "134.209.252.162",
	}
	compareJSON(t, "node-resources.json", Resources("node-639d7", info))
}

func TestUsageOfANode(t *testing.T) {
	t.Parallel()
	got := usageOf(&Reading{
		At: time.Unix(123456789, 0), CPUs: 12, CPUPercent: 20, MemoryTotal: 34359738368, MemoryAvailable: 17179869184,
		Disks: []Disk{{"/dev/nvme0n1p3", 496896393216, 247193731072}, {"/dev/nvme0n1p1", 824180736, 765984768}},
	})
	want := &nodev1.Usage{CpuMillis: 2400, MemoryBytes: 17179869184, Machine: &nodev1.MachineUsage{
		MeasuredUnix: 123456789, Cpus: 12, CpuPercent: 20, MemoryTotalBytes: 34359738368, MemoryAvailableBytes: 17179869184,
		Disks: []*nodev1.DiskUsage{
			{Name: "/dev/nvme0n1p3", TotalBytes: 496896393216, FreeBytes: 247193731072}, {Name: "/dev/nvme0n1p1", TotalBytes: 824180736, FreeBytes: 765984768},
		},
	}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("usageOf() (-want +got):\n%s", diff)
	}
	if got := usageOf(&Reading{MemoryTotal: 1, MemoryAvailable: 2, Disks: make([]Disk, nodev1.MaxDisks+1)}); got.GetMemoryBytes() != 0 || len(got.GetMachine().GetDisks()) != nodev1.MaxDisks {
		t.Errorf("usageOf() of a machine with unusual values = %v", got)
	}
}

func TestVersionIsANumberIfPossible(t *testing.T) {
	t.Parallel()
	for in, want := range map[version]string{"12": "12", "22.04": "22.04", "3.20.1": `"3.20.1"`, "22.10": `"22.10"`, "": `""`, "rolling": `"rolling"`, "0x10": `"0x10"`, "NaN": `"NaN"`} {
		got, err := json.Marshal(in)
		if err != nil || string(got) != want {
			t.Errorf("version %q is %s, %v, want %s", in, got, err, want)
		}
	}
}

func TestBusy(t *testing.T) {
	t.Parallel()
	before := cpu.TimesStat{User: 10, System: 5, Idle: 80, Iowait: 5}
	tests := []struct {
		name string
		now  cpu.TimesStat
		want float64
	}{
		{"a quarter", cpu.TimesStat{User: 12, System: 5.5, Idle: 87, Iowait: 5.5}, 25},
		{"idle", cpu.TimesStat{User: 10, System: 5, Idle: 90, Iowait: 5}, 0},
		{"no time passed", before, 0},
		{"counters went back", cpu.TimesStat{}, 0},
		{"guests count once", cpu.TimesStat{User: 20, System: 5, Idle: 80, Iowait: 5, Guest: 10}, 100},
	}
	for _, tc := range tests {
		if got := busy(before, tc.now); got != tc.want {
			t.Errorf("%s: busy() = %g, want %g", tc.name, got, tc.want)
		}
	}
}

func TestCPUMillis(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	half := instance.Usage{At: at, CPUNanos: 5e8}
	tests := []struct {
		name        string
		before, now instance.Usage
		want        int64
	}{
		{"first of unknown age", instance.Usage{}, half, 0},
		{"first", instance.Usage{}, instance.Usage{At: at, StartedAt: at.Add(-2 * time.Second), CPUNanos: 5e8}, 250},
		{"half a core", half, instance.Usage{At: at.Add(time.Second), CPUNanos: 1e9}, 500},
		{"started anew", half, instance.Usage{At: at.Add(time.Second), CPUNanos: 1e6}, 0},
		{"same moment", half, half, 0},
	}
	for _, tc := range tests {
		if got := cpuMillis(tc.before, tc.now); got != tc.want {
			t.Errorf("%s: cpuMillis() = %d, want %d", tc.name, got, tc.want)
		}
	}
}

func TestPressureHasHysteresis(t *testing.T) {
	t.Parallel()
	now := false
	for _, step := range []struct {
		used float64
		want bool
	}{{50, false}, {89.9, false}, {90, true}, {86, true}, {85, false}, {89, false}, {99, true}} {
		if now = pressed(now, step.used); now != step.want {
			t.Errorf("at %g %%: pressure %t, want %t", step.used, now, step.want)
		}
	}
}

func TestFactsOfThisMachine(t *testing.T) {
	t.Parallel()
	status, err := Facts(t.Context(), FactsConfig{
		Path: t.TempDir(), ExternalAddress: "192.0.2.1", Info: rikv1alpha1.NodeInfo{MachineID: "m"},
		Reserved: rikv1alpha1.ResourceList{rikv1alpha1.ResourceCPU: resource.MustParse("100m"), rikv1alpha1.ResourceDisk: resource.MustParse("1000Ei")},
	})
	if err != nil {
		t.Fatal(err)
	}
	info := status.Info
	if int(info.CPUs) < 1 || info.MemoryBytes < 1<<20 || info.DiskBytes < 1 || info.KernelVersion == "" || info.Hostname == "" ||
		info.Architecture != runtime.GOARCH || info.OperatingSystem != "linux" || info.MachineID != "m" || info.ExternalAddress != "192.0.2.1" {
		t.Errorf("Facts() = %+v, want every fact", info)
	}
	if net.ParseIP(info.InternalAddress) == nil {
		t.Errorf("internal address %q is none", info.InternalAddress)
	}
	if got, want := status.Allocatable.MilliCPU(), status.Capacity.MilliCPU()-100; got != want {
		t.Errorf("allocatable %d millicores, want %d", got, want)
	}
	if got := status.Allocatable.Bytes(rikv1alpha1.ResourceDisk); got != 0 {
		t.Errorf("allocatable disk %d, want nothing when more is reserved than there is", got)
	}
	if got := status.Allocatable.Bytes(rikv1alpha1.ResourceInstances); got != DefaultMaxInstances {
		t.Errorf("allocatable instances %d, want %d", got, DefaultMaxInstances)
	}
}

func TestReadThisMachine(t *testing.T) {
	t.Parallel()
	reader := NewReader(t.TempDir())
	for range 2 {
		r, err := reader.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r.CPUs < 1 || r.CPUPercent < 0 || r.CPUPercent > 100 || r.MemoryTotal == 0 || r.MemoryAvailable > r.MemoryTotal || r.WatchedUsedPercent < 0 {
			t.Errorf("Read() = %+v", r)
		}
	}
	if _, err := NewReader("/nonexistent").Read(t.Context()); err == nil {
		t.Error("Read() of a path that is not there succeeded")
	}
}

func TestParseRelease(t *testing.T) {
	t.Parallel()
	tests := []struct{ text, name, release string }{
		{"PRETTY_NAME=\"Debian GNU/Linux 12\"\nNAME=\"Debian GNU/Linux\"\nVERSION_ID=\"12\"\n", "Debian", "12"},
		{"NAME=Ubuntu\nVERSION_ID=\"24.04\"\n", "Ubuntu", "24.04"},
		{"NAME=\"Alpine Linux\"\nVERSION_ID=3.20.1\n", "Alpine", "3.20.1"},
		{"rubbish", "", ""},
	}
	for _, tc := range tests {
		if name, release := parseRelease(strings.NewReader(tc.text)); name != tc.name || release != tc.release {
			t.Errorf("parseRelease(%q) = %q, %q, want %q, %q", tc.text, name, release, tc.name, tc.release)
		}
	}
}

func TestFirstAddress(t *testing.T) {
	t.Parallel()
	addresses := func(texts ...string) (all []net.Addr) {
		for _, text := range texts {
			all = append(all, &net.IPNet{IP: net.ParseIP(text)})
		}
		return all
	}
	tests := []struct {
		from []net.Addr
		want string
	}{
		{addresses("127.0.0.1", "fe80::1", "fd00::1", "10.0.0.1"), "10.0.0.1"},
		{addresses("::1", "fd00::1"), "fd00::1"},
		{addresses("127.0.0.1"), "127.0.0.1"},
	}
	for _, tc := range tests {
		if got := firstAddress(tc.from); got != tc.want {
			t.Errorf("firstAddress(%v) = %q, want %q", tc.from, got, tc.want)
		}
	}
}

// script is the scripted environment of the monitor. Goroutines of a bubble that only time
// synchronizes need a lock like any others.
type script struct {
	mu        sync.Mutex
	used      float64
	broken    bool
	reports   int
	latest    []*nodev1.Usage
	collected []bool
}

func (s *script) do(f func()) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *script) read(context.Context) (Reading, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken {
		return Reading{}, errors.New("no /proc")
	}
	return Reading{At: time.Now(), CPUs: 2, MemoryTotal: 100, MemoryAvailable: 50, WatchedUsedPercent: s.used}, nil
}

func (s *script) report(usages []*nodev1.Usage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports++
	s.latest = usages
}

func (s *script) collect(_ context.Context, pressure bool) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.collected = append(s.collected, pressure)
	return 1, nil
}

// An instance is evicted only if the removal of images was not enough, one at each check.
func TestRunEvictsWhenImagesAreNotEnough(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{used: 94}
		freed, evicted := 0.0, 0
		locked := func(f func()) {
			s.mu.Lock()
			defer s.mu.Unlock()
			f()
		}
		m := New(Config{
			Read: s.read, Report: s.report, Instances: func() []Instance { return nil },
			DiskUsed: func(context.Context) (used float64, err error) {
				locked(func() { used = s.used })
				return used, nil
			},
			Collect: func(ctx context.Context, pressure bool) (int64, error) {
				locked(func() { s.used -= freed })
				return s.collect(ctx, pressure)
			},
			Evict: func(context.Context) (string, error) {
				locked(func() { evicted++ })
				return "u1", nil
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		look := func(what string, want int) {
			t.Helper()
			time.Sleep(DefaultInterval)
			s.do(func() {
				if evicted != want {
					t.Errorf("%s: %d instances were ended, want %d", what, evicted, want)
				}
			})
		}
		look("below the limit", 0)
		s.do(func() { s.used, freed = 99, 10 })
		look("when images make room", 0)
		s.do(func() { s.used, freed = 99, 1 })
		look("when they do not make enough", 1)
		s.do(func() { freed = 0 })
		look("when it is as full as before", 2)
		s.do(func() { s.used = 60 })
		look("when there is room", 2)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
}

func TestRunMeasuresAndCollects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{used: 50}
		m := New(Config{
			Read: s.read, Report: s.report, Collect: s.collect,
			Instances: func() []Instance {
				return []Instance{{UID: "a", Usage: instance.Usage{MemoryBytes: 1 << 20, VM: &instance.VMUsage{Exits: 2}}}}
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		time.Sleep(DefaultInterval + time.Second)
		s.do(func() {
			if s.reports != 2 || len(s.latest) != 2 || s.latest[0].GetMachine() == nil || s.latest[1].GetUid() != "a" ||
				s.latest[1].GetMemoryBytes() != 1<<20 || s.latest[1].GetVm().GetExits() != 2 {
				t.Errorf("%d reports, the last %v, want two of the node and a", s.reports, s.latest)
			}
		})
		time.Sleep(collectInterval)
		s.do(func() {
			if diff := cmp.Diff([]bool{false}, s.collected); diff != "" || m.DiskPressure() {
				t.Errorf("collected for age (-want +got):\n%s", diff)
			}
			s.used = 95
		})
		time.Sleep(2*collectIntervalPressed + DefaultInterval)
		before := 0
		s.do(func() {
			if !m.DiskPressure() || len(s.collected) < 3 || !s.collected[len(s.collected)-1] {
				t.Errorf("pressure %t, collected %v, want it twice more under pressure", m.DiskPressure(), s.collected)
			}
			s.broken, before = true, s.reports
		})
		time.Sleep(time.Minute)
		s.do(func() {
			if s.reports != before {
				t.Error("reported a measurement that there was not")
			}
		})
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
}
