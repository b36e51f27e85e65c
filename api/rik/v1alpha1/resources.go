package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
)

// ResourceList maps a resource to an amount.
type ResourceList map[ResourceName]resource.Quantity

// LargestResources is what no machine has of each resource. A larger amount is a mistake of
// unit, and sums of these cannot overflow 64 bits.
func LargestResources() ResourceList {
	return ResourceList{
		ResourceCPU:       resource.MustParse("100k"),
		ResourceMemory:    resource.MustParse("1Pi"),
		ResourceDisk:      resource.MustParse("64Pi"),
		ResourceInstances: resource.MustParse("1M"),
	}
}

// MilliCPU is the CPU in thousandths of a core; 0 when absent.
func (l ResourceList) MilliCPU() int64 {
	q := l[ResourceCPU]
	return q.MilliValue()
}

// Bytes is the amount of a resource counted in bytes or pieces; 0 when absent.
func (l ResourceList) Bytes(name ResourceName) int64 {
	q := l[name]
	return q.Value()
}
