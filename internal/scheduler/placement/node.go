package placement

import (
	"math"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// maxAmount bounds every amount, so that sums over the instances of a node
// never overflow: 2^50 bytes is a pebibyte, and thousands of those still fit
// in 63 bits.
const maxAmount = int64(1) << 50

// unlimited is the number of instances of a node that names no limit.
const unlimited = math.MaxInt64 / 4

// Resources is an amount of everything that is reserved on a node.
type Resources struct {
	MilliCPU    int64
	MemoryBytes int64
	DiskBytes   int64
	Instances   int64
}

// AllocatableOf is what a node's status offers. A node that sets no limit to
// its number of instances has none; of any other resource that it does not name
// it has nothing.
func AllocatableOf(list rikv1alpha1.ResourceList) Resources {
	r := Resources{
		MilliCPU:    bounded(list.MilliCPU()),
		MemoryBytes: bounded(list.Bytes(rikv1alpha1.ResourceMemory)),
		DiskBytes:   bounded(list.Bytes(rikv1alpha1.ResourceDisk)),
		Instances:   unlimited,
	}
	if _, ok := list[rikv1alpha1.ResourceInstances]; ok {
		r.Instances = bounded(list.Bytes(rikv1alpha1.ResourceInstances))
	}
	return r
}

// requestsOf is what one instance of a template reserves.
func requestsOf(template *rikv1alpha1.InstanceTemplate) Resources {
	list := template.EffectiveRequests()
	return Resources{
		MilliCPU:    bounded(list.MilliCPU()),
		MemoryBytes: bounded(list.Bytes(rikv1alpha1.ResourceMemory)),
		DiskBytes:   bounded(list.Bytes(rikv1alpha1.ResourceDisk)),
		Instances:   1,
	}
}

func bounded(v int64) int64 { return max(0, min(v, maxAmount)) }

func (r *Resources) add(o Resources) {
	r.MilliCPU += o.MilliCPU
	r.MemoryBytes += o.MemoryBytes
	r.DiskBytes += o.DiskBytes
	r.Instances += o.Instances
}

func (r *Resources) subtract(o Resources) {
	r.MilliCPU -= o.MilliCPU
	r.MemoryBytes -= o.MemoryBytes
	r.DiskBytes -= o.DiskBytes
	r.Instances -= o.Instances
}

// lacking names the first resource of which a request exceeds what is free. A
// resource that is not asked for is never lacking, even on an overcommitted
// node.
func (r *Resources) lacking(request *Resources) verdict {
	switch {
	case request.MilliCPU > 0 && request.MilliCPU > r.MilliCPU:
		return lacksCPU
	case request.MemoryBytes > 0 && request.MemoryBytes > r.MemoryBytes:
		return lacksMemory
	case request.DiskBytes > 0 && request.DiskBytes > r.DiskBytes:
		return lacksDisk
	case request.Instances > r.Instances:
		return lacksInstances
	}
	return fits
}

// Node is what placement knows of a node. The snapshot keeps what it is given:
// callers must not change maps and slices afterward.
type Node struct {
	Name          string
	Labels        map[string]string
	Taints        []rikv1alpha1.Taint
	Unschedulable bool
	// Ready is true while the node is connected, has reported what it is, and
	// may be given instances.
	Ready bool
	// NotReady says why Ready is false, for explanations.
	NotReady     string
	DiskPressure bool
	// NoNetwork is true where instances have their loopback only, so that nobody
	// reaches their ports.
	NoNetwork bool
	// NetworkTrouble says why instances that come now would have no network or no names;
	// empty: they have both.
	NetworkTrouble string
	Allocatable    Resources
	// Kinds that it runs. Empty means Pods only.
	Kinds []rikv1alpha1.WorkloadKind
	// Runtimes that it has. Empty means runc only.
	Runtimes []string
	// Images that it need not pull.
	Images map[string]struct{}
	// UsedPorts are held by processes of the machine that are no instances; true: only
	// instances in the node's own network are kept off.
	UsedPorts map[Port]bool
}

// node is a Node with what is on it.
type node struct {
	Node
	// known is false for a name that only occupants speak of.
	known bool
	hash  uint64
	free  Resources
	// occupants in no order; each knows its index.
	occupants []*occupant
	// ports taken in the node's own network, with the number of takers.
	ports map[Port]int32
	// static counts the changes to everything but occupants, version counts
	// all changes.
	static  uint32
	version uint64
}

// occupant is an instance that holds resources of a node.
type occupant struct {
	uid     string
	state   *shapeState
	node    int32
	index   int32
	created int64
}

// mix scrambles a 64 bit number (the finalizer of splitmix64).
func mix(h uint64) uint64 {
	h ^= h >> 30
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 27
	h *= 0x94d049bb133111eb
	return h ^ h>>31
}

// hashOf is FNV-1a: the same in every process, so that a decision can be
// repeated elsewhere.
func hashOf(s string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 0x100000001b3
	}
	return mix(h)
}
