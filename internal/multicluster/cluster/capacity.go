package cluster

import (
	"maps"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// rikInstances is the resource that counts the instances which a rik node may run.
const rikInstances rikv1alpha1.ResourceName = "instances"

// supply is the resources of a cluster.
type supply struct {
	capacity, allocatable corev1.ResourceList
}

// equal reports whether two supplies have the same amounts.
func (s supply) equal(t supply) bool {
	return equality.Semantic.DeepEqual(s.capacity, t.capacity) && equality.Semantic.DeepEqual(s.allocatable, t.allocatable)
}

func ofKube(name string) corev1.ResourceName { return corev1.ResourceName(name) }

// ofRik returns the Kubernetes name for the resource of a rik node. The instances of rik are the
// pods of Kubernetes.
func ofRik(name string) corev1.ResourceName {
	switch rikv1alpha1.ResourceName(name) {
	case rikInstances:
		return corev1.ResourcePods
	case rikv1alpha1.ResourceDisk:
		return corev1.ResourceEphemeralStorage
	default:
		return corev1.ResourceName(name)
	}
}

// maxResources limits the number of resources of a cluster in its status. Nodes have about ten.
const maxResources = 64

// amount matches quantities that can be used in calculations. The type Quantity accepts exponents
// of any size. Even parsing such a quantity could then take hours.
var amount = regexp.MustCompile(`^[0-9]{1,20}(\.[0-9]{1,20})?([numkMGTPE]|[KMGTPE]i|[eE][0-9]{1,2})?$`)

// plus adds the resources of one node. It skips invalid names of resources and invalid amounts.
func plus(sum corev1.ResourceList, part map[string]string, nameOf func(string) corev1.ResourceName) {
	for _, theirs := range slices.Sorted(maps.Keys(part)) {
		name := nameOf(theirs)
		total, known := sum[name]
		if !amount.MatchString(part[theirs]) || len(validation.IsQualifiedName(string(name))) > 0 || !known && len(sum) >= maxResources {
			continue
		}
		quantity, err := resource.ParseQuantity(part[theirs])
		if err != nil {
			continue
		}
		if !known {
			total = *resource.NewQuantity(0, quantity.Format)
		}
		total.Add(quantity)
		sum[name] = total
	}
}
