package oci

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// An emptyDir in memory must not bypass the memory limits of the containers that use it.
func TestMemoryVolumesHaveTheSizeOfTheirInstance(t *testing.T) {
	t.Parallel()
	limited := func(memory string) rikv1alpha1.Container {
		return rikv1alpha1.Container{Resources: rikv1alpha1.Resources{Limits: rikv1alpha1.ResourceList{rikv1alpha1.ResourceMemory: resource.MustParse(memory)}}}
	}
	for name, tc := range map[string]struct {
		containers  []rikv1alpha1.Container
		limit, want int64
	}{
		"no limits":          {[]rikv1alpha1.Container{{}}, 0, 0},
		"its own":            {[]rikv1alpha1.Container{{}}, 5 << 20, 5 << 20},
		"the container's":    {[]rikv1alpha1.Container{limited("8Mi")}, 0, 8 << 20},
		"all containers'":    {[]rikv1alpha1.Container{limited("8Mi"), limited("4Mi")}, 0, 12 << 20},
		"one is not limited": {[]rikv1alpha1.Container{limited("8Mi"), {}}, 0, 0},
		"the smaller":        {[]rikv1alpha1.Container{limited("8Mi")}, 5 << 20, 5 << 20},
		"no more than both":  {[]rikv1alpha1.Container{limited("8Mi")}, 1 << 30, 8 << 20},
	} {
		if got := memoryVolumeBytes(rikv1alpha1.InstanceTemplate{Containers: tc.containers}, tc.limit); got != tc.want {
			t.Errorf("%s: memoryVolumeBytes() = %d, want %d", name, got, tc.want)
		}
	}
}
