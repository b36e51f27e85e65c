package v1alpha1

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
)

// limits of cpu and memory; an empty text leaves one out.
func limits(cpu, memory string) Resources {
	r := Resources{Limits: ResourceList{}}
	for name, amount := range map[ResourceName]string{ResourceCPU: cpu, ResourceMemory: memory} {
		if amount != "" {
			r.Limits[name] = resource.MustParse(amount)
		}
	}
	return r
}

func TestMachine(t *testing.T) {
	t.Parallel()
	const mi = int64(1 << 20)
	function := func(r Resources) InstanceTemplate {
		return InstanceTemplate{Kind: KindFunction, Function: &Function{Resources: r}}
	}
	pod := func(isolation Isolation, init []Container, containers ...Resources) InstanceTemplate {
		out := InstanceTemplate{Kind: KindPod, Isolation: isolation, InitContainers: init}
		for _, r := range containers {
			out.Containers = append(out.Containers, Container{Resources: r})
		}
		return out
	}
	asked := limits("", "512Mi")
	asked.Requests = ResourceList{ResourceMemory: resource.MustParse("300Mi"), ResourceDisk: resource.MustParse("1Gi")}
	for name, tc := range map[string]struct {
		template InstanceTemplate
		machine  Machine
		// reserved memory in bytes and cpu in thousandths
		memory, milli int64
	}{
		"function without limits":   {function(Resources{}), Machine{CPUs: 1, MemoryBytes: 256 * mi}, 256 * mi, 0},
		"function with limits":      {function(limits("1500m", "128Mi")), Machine{CPUs: 2, MemoryBytes: 128 * mi}, 128 * mi, 1500},
		"function with a request":   {function(asked), Machine{CPUs: 1, MemoryBytes: 512 * mi, DiskBytes: 1 << 30}, 300 * mi, 0},
		"pod":                       {pod(IsolationMicroVM, nil, limits("100m", "64Mi"), limits("1", "")), Machine{CPUs: 2, MemoryBytes: (64 + 256 + 96) * mi}, (64 + 256 + 96) * mi, 1100},
		"pod with a greedy init":    {pod(IsolationMicroVM, []Container{{Resources: limits("3", "1Gi")}}, limits("1", "64Mi")), Machine{CPUs: 3, MemoryBytes: (1024 + 96) * mi}, (1024 + 96) * mi, 3000},
		"more than a machine has":   {function(limits("100", "")), Machine{CPUs: 32, MemoryBytes: 256 * mi}, 256 * mi, 100_000},
		"pod in ordinary isolation": {pod("", nil, limits("1", "")), Machine{CPUs: 1, MemoryBytes: (256 + 96) * mi}, 0, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.machine, tc.template.Machine()); diff != "" {
				t.Errorf("Machine (-want +got):\n%s", diff)
			}
			got := tc.template.EffectiveRequests()
			if got.Bytes(ResourceMemory) != tc.memory || got.MilliCPU() != tc.milli {
				t.Errorf("EffectiveRequests = %d bytes, %dm; want %d, %d", got.Bytes(ResourceMemory), got.MilliCPU(), tc.memory, tc.milli)
			}
		})
	}
}
