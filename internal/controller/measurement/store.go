// Package measurement keeps the latest resource usage of nodes and instances, and shows it in the
// JSON of the API and of the RIK papers.
//
// A node may be broken or compromised. The Store is the one place that checks what a node sends.
// It accepts usages of the node itself and of instances that are bound to it. Their values must be
// possible for a machine. Thus the size of the Store depends on the cluster's objects, and not on
// what nodes send.
package measurement

import (
	"maps"
	"math"
	"sync"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/nodev1"
)

const (
	// maxName is the length of a disk's name, in bytes.
	maxName = 253
	// maxTime is the last second of the year 9999, the last one that JSON times have.
	maxTime = 253_402_300_799
)

// Store holds the latest usages. Its methods are safe for concurrent use and do not block.
type Store struct {
	mu        sync.RWMutex
	nodes     map[string]*nodev1.Usage // never changed, only replaced
	instances map[types.UID]*nodev1.Usage
}

// NewStore returns an empty store.
func NewStore() *Store {
	return &Store{nodes: map[string]*nodev1.Usage{}, instances: map[types.UID]*nodev1.Usage{}}
}

// Sender is the node that sends measurements.
type Sender struct {
	// Node is the name in its certificate.
	Node string
	// Connected reports whether the node's connection is still valid. It must become false before
	// ForgetNode is called. Neither it nor Owns may call the store.
	Connected func() bool
	// Owns reports whether an instance exists and is bound to the node. It must become false
	// before ForgetInstance is called.
	Owns func(types.UID) bool
}

// Take stores the valid usages of a message and returns how many it ignored. It keeps parts of
// the message, which the caller must not change any more.
func (s *Store) Take(from Sender, m *nodev1.Measurements) (ignored int) {
	largest := newLimits()
	usages := m.GetUsages()[:min(len(m.GetUsages()), nodev1.MaxUsages)]
	ignored = len(m.GetUsages()) - len(usages)
	// The senders' checks and the writes are under one lock. Otherwise a usage could be stored
	// after ForgetNode or ForgetInstance, and would stay forever.
	s.mu.Lock()
	defer s.mu.Unlock()
	if !from.Connected() {
		return len(m.GetUsages())
	}
	for _, u := range usages {
		uid := types.UID(u.GetUid())
		switch {
		case !largest.allow(u):
			ignored++
		case uid == "":
			u.Vm = nil
			s.nodes[from.Node] = known(u)
		case from.Owns(uid):
			u.Machine = nil
			s.instances[uid] = known(u)
		default:
			ignored++
		}
	}
	return ignored
}

// ForgetNode removes the usage of a node that does not exist any more.
func (s *Store) ForgetNode(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, name)
}

// ForgetInstance removes the usage of an instance that does not exist any more.
func (s *Store) ForgetInstance(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.instances, uid)
}

// Nodes returns the latest usage of each node. The caller must not change the usages.
func (s *Store) Nodes() map[string]*nodev1.Usage {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.nodes)
}

// Instances returns the latest usage of each instance. The caller must not change the usages.
func (s *Store) Instances() map[types.UID]*nodev1.Usage {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return maps.Clone(s.instances)
}

// known drops the fields that this version does not know, which may be of any size.
func known(u *nodev1.Usage) *nodev1.Usage {
	parts := []proto.Message{u}
	if u.GetVm() != nil {
		parts = append(parts, u.GetVm())
	}
	if u.GetMachine() != nil {
		parts = append(parts, u.GetMachine())
	}
	for _, d := range u.GetMachine().GetDisks() {
		parts = append(parts, d)
	}
	for _, m := range parts {
		m.ProtoReflect().SetUnknown(nil)
	}
	return u
}

// limits are the largest values that the API accepts as capacity of a node.
type limits struct{ cpuMillis, memoryBytes, diskBytes int64 }

func newLimits() limits {
	largest := rikv1alpha1.LargestResources()
	return limits{
		cpuMillis: largest.MilliCPU(), memoryBytes: largest.Bytes(rikv1alpha1.ResourceMemory),
		diskBytes: largest.Bytes(rikv1alpha1.ResourceDisk),
	}
}

// allow reports whether a machine can have the values of a usage. A node's usage must have those
// of its machine.
func (l limits) allow(u *nodev1.Usage) bool {
	return within(u.GetCpuMillis(), l.cpuMillis) && within(u.GetMemoryBytes(), l.memoryBytes) &&
		countable(u.GetVm()) && (u.GetUid() != "" || u.GetMachine() != nil && l.allowMachine(u.GetMachine()))
}

func (l limits) allowMachine(m *nodev1.MachineUsage) bool {
	percent := m.GetCpuPercent()
	ok := within(m.GetMeasuredUnix(), maxTime) && within(int64(m.GetCpus()), l.cpuMillis/1000) &&
		percent >= 0 && percent <= 100 && // false for NaN
		within(m.GetMemoryTotalBytes(), l.memoryBytes) && within(m.GetMemoryAvailableBytes(), m.GetMemoryTotalBytes()) &&
		len(m.GetDisks()) <= nodev1.MaxDisks
	for _, d := range m.GetDisks() {
		ok = ok && len(d.GetName()) <= maxName && within(d.GetTotalBytes(), l.diskBytes) && within(d.GetFreeBytes(), d.GetTotalBytes())
	}
	return ok
}

func within(n, most int64) bool { return n >= 0 && n <= most }

// countable reports whether all counters fit into an int64, as readers of JSON expect.
func countable(v *nodev1.VMUsage) bool {
	return max(v.GetVcpuNanos(), v.GetExits(), v.GetDiskReadBytes(), v.GetDiskWriteBytes(), v.GetDiskReads(),
		v.GetDiskWrites(), v.GetNetworkReceiveBytes(), v.GetNetworkTransmitBytes()) <= math.MaxInt64
}
