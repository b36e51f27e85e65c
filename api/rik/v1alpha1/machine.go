package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

const (
	// MaxMachineCPUs is the largest number of processors that every VMM supports.
	MaxMachineCPUs = 32
	// DefaultMachineMemoryBytes is the memory of a Function without a limit. In a Pod's microVM
	// it is the share of a container without one.
	DefaultMachineMemoryBytes = 256 << 20
	// GuestMemoryBytes is the memory that the kernel and the guest init of a Pod's microVM need,
	// in addition to the limits of its containers. Thus the same limits are sufficient with and
	// without a microVM. A Function's limit is the memory of its whole machine.
	GuestMemoryBytes = 96 << 20
)

// Machine is the size of a microVM.
//
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
// +protobuf=false
type Machine struct {
	CPUs        int
	MemoryBytes int64
	// DiskBytes is the size of the writable disk that its containers request. With 0 the node
	// decides.
	DiskBytes int64
}

// Machine returns the size of the microVM that an instance of the template needs. Its number of
// processors is the sum of the limits, rounded up. The node's driver divides the processors below
// that. The result is meaningful only for Virtual templates.
func (t *InstanceTemplate) Machine() Machine {
	milli, memory, disk := int64(0), int64(0), int64(0)
	for _, c := range t.Processes() {
		milli += c.Resources.Limits.MilliCPU()
		memory += machineMemory(&c.Resources)
		disk += c.Resources.Effective().Bytes(ResourceDisk)
	}
	for i := range t.InitContainers { // alone, before the others
		r := &t.InitContainers[i].Resources
		milli, memory = max(milli, r.Limits.MilliCPU()), max(memory, machineMemory(r))
		disk = max(disk, r.Effective().Bytes(ResourceDisk))
	}
	if t.Kind != KindFunction {
		memory += GuestMemoryBytes
	}
	return Machine{CPUs: int(min(max((milli+999)/1000, 1), MaxMachineCPUs)), MemoryBytes: memory, DiskBytes: disk}
}

func machineMemory(r *Resources) int64 {
	if limit := r.Limits.Bytes(ResourceMemory); limit > 0 {
		return limit
	}
	return max(DefaultMachineMemoryBytes, r.Requests.Bytes(ResourceMemory))
}

// fillMachine completes a sum over the processes of a microVM. It adds memory for containers
// without a limit, which use memory too.
func (t *InstanceTemplate) fillMachine(sum ResourceList) {
	for _, c := range t.Processes() {
		if _, named := c.Resources.Effective()[ResourceMemory]; !named {
			sum.addMemory(DefaultMachineMemoryBytes)
		}
	}
}

func (l ResourceList) addMemory(bytes int64) {
	total := l[ResourceMemory]
	total.Add(*resource.NewQuantity(bytes, resource.BinarySI))
	l[ResourceMemory] = total
}
