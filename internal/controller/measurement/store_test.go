package measurement

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/types"

	"rik.dev/rik/internal/rpc/nodev1"
)

// of returns a connected node that owns the given instances.
func of(node string, own ...types.UID) Sender {
	return Sender{Node: node, Connected: func() bool { return true }, Owns: func(uid types.UID) bool { return slices.Contains(own, uid) }}
}

func machine() *nodev1.MachineUsage {
	return &nodev1.MachineUsage{
		MeasuredUnix: 1, Cpus: 4, CpuPercent: 25, MemoryTotalBytes: 1000, MemoryAvailableBytes: 500,
		Disks: []*nodev1.DiskUsage{{Name: "/dev/sda", TotalBytes: 10, FreeBytes: 5}},
	}
}

func message(usages ...*nodev1.Usage) *nodev1.Measurements {
	return &nodev1.Measurements{Usages: usages}
}

// TestOnlyOwnInstancesAreMeasured: measurements of invented instances and of other nodes'
// instances are dropped, however many there are.
func TestOnlyOwnInstancesAreMeasured(t *testing.T) {
	t.Parallel()
	s := NewStore()
	s.Take(of("other", "theirs"), message(&nodev1.Usage{Uid: "theirs", CpuMillis: 1}))
	mine := of("n", "mine", "broken")
	if ignored := s.Take(mine, message(
		&nodev1.Usage{Machine: machine()}, &nodev1.Usage{Uid: "mine", CpuMillis: 7},
		&nodev1.Usage{Uid: "theirs", CpuMillis: 2}, &nodev1.Usage{Uid: "broken", CpuMillis: -1},
	)); ignored != 2 {
		t.Errorf("ignored %d usages, want that of another node's instance and the broken one", ignored)
	}
	for i := range 100 {
		var m nodev1.Measurements
		for j := range nodev1.MaxUsages {
			m.Usages = append(m.Usages, &nodev1.Usage{Uid: fmt.Sprint("invented-", i, "-", j)})
		}
		if ignored := s.Take(mine, &m); ignored != nodev1.MaxUsages {
			t.Fatalf("ignored %d of %d invented instances", ignored, nodev1.MaxUsages)
		}
	}
	instances := s.Instances()
	if len(instances) != 2 || instances["mine"].GetCpuMillis() != 7 || instances["theirs"].GetCpuMillis() != 1 || len(s.Nodes()) != 1 {
		t.Errorf("%d instances and %d nodes are measured: %v", len(instances), len(s.Nodes()), instances)
	}
}

func TestMessagesAreBounded(t *testing.T) {
	t.Parallel()
	s := NewStore()
	everything := Sender{Node: "n", Connected: func() bool { return true }, Owns: func(types.UID) bool { return true }}
	var m nodev1.Measurements
	for i := range nodev1.MaxUsages + 5 {
		m.Usages = append(m.Usages, &nodev1.Usage{Uid: fmt.Sprint(i)})
	}
	if ignored := s.Take(everything, &m); ignored != 5 || len(s.Instances()) != nodev1.MaxUsages {
		t.Errorf("ignored %d usages and has %d, want 5 and %d", ignored, len(s.Instances()), nodev1.MaxUsages)
	}
}

// TestImpossibleUsagesAreIgnored: the measurement before stays.
func TestImpossibleUsagesAreIgnored(t *testing.T) {
	t.Parallel()
	onMachine := func(change func(*nodev1.MachineUsage)) *nodev1.Usage {
		m := machine()
		change(m)
		return &nodev1.Usage{CpuMillis: 1, Machine: m}
	}
	for name, u := range map[string]*nodev1.Usage{
		"a billion cores":      {Uid: "mine", CpuMillis: 1e12},
		"negative CPU":         {Uid: "mine", CpuMillis: -1},
		"negative memory":      {Uid: "mine", MemoryBytes: -1},
		"endless memory":       {Uid: "mine", MemoryBytes: math.MaxInt64},
		"an endless counter":   {Uid: "mine", Vm: &nodev1.VMUsage{NetworkReceiveBytes: math.MaxUint64}},
		"a node with no facts": {CpuMillis: 1},
		"no share":             onMachine(func(m *nodev1.MachineUsage) { m.CpuPercent = math.NaN() }),
		"an endless share":     onMachine(func(m *nodev1.MachineUsage) { m.CpuPercent = math.Inf(1) }),
		"a negative share":     onMachine(func(m *nodev1.MachineUsage) { m.CpuPercent = -1 }),
		"negative processors":  onMachine(func(m *nodev1.MachineUsage) { m.Cpus = -1 }),
		"too many processors":  onMachine(func(m *nodev1.MachineUsage) { m.Cpus = math.MaxInt32 }),
		"the far future":       onMachine(func(m *nodev1.MachineUsage) { m.MeasuredUnix = math.MaxInt64 }),
		"more free than total": onMachine(func(m *nodev1.MachineUsage) { m.MemoryAvailableBytes = 1001 }),
		"an endless disk":      onMachine(func(m *nodev1.MachineUsage) { m.Disks[0].TotalBytes = math.MaxInt64 }),
		"an endless name":      onMachine(func(m *nodev1.MachineUsage) { m.Disks[0].Name = strings.Repeat("x", maxName+1) }),
		"too many disks":       onMachine(func(m *nodev1.MachineUsage) { m.Disks = make([]*nodev1.DiskUsage, nodev1.MaxDisks+1) }),
	} {
		s := NewStore()
		s.Take(of("n", "mine"), message(&nodev1.Usage{CpuMillis: 7, Machine: machine()}, &nodev1.Usage{Uid: "mine", CpuMillis: 7}))
		if ignored := s.Take(of("n", "mine"), message(u)); ignored != 1 || s.Nodes()["n"].GetCpuMillis() != 7 || s.Instances()["mine"].GetCpuMillis() != 7 {
			t.Errorf("%s: accepted, or forgot the earlier measurement: %v %v", name, s.Nodes(), s.Instances())
		}
	}
}

// TestNothingUnknownIsKept: fields that this version does not know, or that belong to another kind
// of usage, take no memory.
func TestNothingUnknownIsKept(t *testing.T) {
	t.Parallel()
	unknown := protowire.AppendBytes(protowire.AppendTag(nil, 999, protowire.BytesType), make([]byte, 1<<16))
	node, instance := &nodev1.Usage{Machine: machine(), Vm: &nodev1.VMUsage{}}, &nodev1.Usage{Uid: "mine", Machine: machine(), Vm: &nodev1.VMUsage{}}
	node.ProtoReflect().SetUnknown(unknown)
	node.Machine.ProtoReflect().SetUnknown(unknown)
	node.Machine.Disks[0].ProtoReflect().SetUnknown(unknown)
	instance.Vm.ProtoReflect().SetUnknown(unknown)
	s := NewStore()
	s.Take(of("n", "mine"), message(node, instance))
	n, i := s.Nodes()["n"], s.Instances()["mine"]
	for what, size := range map[string]int{
		"node": len(n.ProtoReflect().GetUnknown()), "machine": len(n.GetMachine().ProtoReflect().GetUnknown()),
		"disk": len(n.GetMachine().GetDisks()[0].ProtoReflect().GetUnknown()), "VM": len(i.GetVm().ProtoReflect().GetUnknown()),
	} {
		if size != 0 {
			t.Errorf("%s has %d unknown bytes", what, size)
		}
	}
	if n.GetVm() != nil || i.GetMachine() != nil {
		t.Errorf("the node has a VM, or the instance a machine: %v %v", n, i)
	}
}

// TestWhatIsGoneStaysGone: a late message does not bring back a deleted node or instance.
func TestWhatIsGoneStaysGone(t *testing.T) {
	t.Parallel()
	connected, owned := true, true
	from := Sender{Node: "n", Connected: func() bool { return connected }, Owns: func(types.UID) bool { return owned }}
	store := NewStore()
	send := func() { store.Take(from, message(&nodev1.Usage{Machine: machine()}, &nodev1.Usage{Uid: "mine"})) }
	send()
	owned = false
	store.ForgetInstance("mine")
	send()
	if len(store.Instances()) != 0 || len(store.Nodes()) != 1 {
		t.Errorf("after the instance went: %v %v", store.Nodes(), store.Instances())
	}
	connected = false
	store.ForgetNode("n")
	send()
	if len(store.Nodes()) != 0 {
		t.Errorf("after the node went: %v", store.Nodes())
	}
}
