package placement

import (
	"math"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// maxAmount bounds every amount, so that sums over the instances of a node never overflow: 2^50
// bytes is a pebibyte, and thousands of those still fit in 63 bits.
const maxAmount = int64(1) << 50

// unlimited is the instance limit of a node that sets no limit.
const unlimited = math.MaxInt64 / 4

// Resources is an amount of every resource that is reserved on a node.
type Resources struct {
	MilliCPU    int64
	MemoryBytes int64
	DiskBytes   int64
	Instances   int64
}

// AllocatableOf returns the resources that a node's status offers. Without a limit on the
// number of instances it is unlimited. Any other resource that is missing is zero.
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

// requestsOf returns the resources that one instance of a template reserves.
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

// lacking returns the first resource of which the request exceeds the free amount. A resource
// that is not requested is never lacking, even on an overcommitted node.
func (r *Resources) lacking(request *Resources) outcome {
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

// Node is the state of a node that placement uses. The snapshot keeps the value, so callers
// must not change its maps and slices afterward.
type Node struct {
	Name          string
	Labels        map[string]string
	Taints        []rikv1alpha1.Taint
	Unschedulable bool
	// Ready is true while the node is connected, has sent its status, and accepts instances.
	Ready bool
	// NotReady says why Ready is false, for explanations.
	NotReady     string
	DiskPressure bool
	// NoNetwork means that instances have only their loopback, so their ports cannot be reached.
	NoNetwork bool
	// NetworkTrouble says why new instances would have no network or no name resolution. It is
	// empty if both work.
	NetworkTrouble string
	Allocatable    Resources
	// Kinds are the workload kinds that the node runs. Empty means Pods only.
	Kinds []rikv1alpha1.WorkloadKind
	// Runtimes are the container runtimes on the node. Empty means runc only.
	Runtimes []string
	// Images are the images that are already on the node.
	Images map[string]struct{}
	// UsedPorts are the ports that other processes of the machine use. The value true means that
	// only instances in the node's own network conflict.
	UsedPorts map[Port]bool
}

// node is a Node with the instances on it.
type node struct {
	Node
	// known is false for a name to which only occupants refer.
	known bool
	hash  uint64
	free  Resources
	// occupants are in no order. Each occupant stores its index.
	occupants []*occupant
	// ports counts the instances on each port of the node's own network.
	ports map[Port]int32
	// static counts the changes to everything except occupants. version counts all changes.
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

// mix scrambles a 64-bit number (the finalizer of splitmix64).
func mix(h uint64) uint64 {
	h ^= h >> 30
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 27
	h *= 0x94d049bb133111eb
	return h ^ h>>31
}

// hashOf is FNV-1a. It is the same in every process, so that a decision can be repeated
// elsewhere.
func hashOf(s string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 0x100000001b3
	}
	return mix(h)
}
