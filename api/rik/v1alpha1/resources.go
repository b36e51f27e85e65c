package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
)

// ResourceList maps a resource to an amount.
type ResourceList map[ResourceName]resource.Quantity

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
