package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

const (
	// MaxMachineCPUs is what every VMM can give a microVM.
	MaxMachineCPUs = 32
	// DefaultMachineMemoryBytes is the memory of a Function without a limit, and
	// the share of a container without one in its Pod's microVM.
	DefaultMachineMemoryBytes = 256 << 20
	// GuestMemoryBytes is what the kernel and the init of a Pod's microVM need
	// beside the limits of its containers, so that the same Pod runs either way. A
	// Function's limit is its whole machine.
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
	// DiskBytes its containers ask for to write to; 0: the node decides.
	DiskBytes int64
}

// Machine is the microVM that an instance of the template needs: as many
// processors as the limits add up to, rounded up; the node's driver shares them
// out below that. It means something for Virtual templates only.
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

// fillMachine completes a sum over the processes of a microVM: memory that no
// container names is used all the same.
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
