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

// rikInstances is how many instances a rik node may run.
const rikInstances rikv1alpha1.ResourceName = "instances"

// supply is what a cluster has for work.
type supply struct {
	capacity, allocatable corev1.ResourceList
}

// equal says whether two are the same amounts.
func (s supply) equal(t supply) bool {
	return equality.Semantic.DeepEqual(s.capacity, t.capacity) && equality.Semantic.DeepEqual(s.allocatable, t.allocatable)
}

func ofKube(name string) corev1.ResourceName { return corev1.ResourceName(name) }

// ofRik translates the name of a rik node's resource: its instances are what Kubernetes
// calls pods.
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

// maxResources is how many resources are told of a cluster. Nodes have some ten.
const maxResources = 64

// amount is a quantity that one can reckon with. The type Quantity takes exponents of any
// length, and then reckons for hours, already when it is read.
var amount = regexp.MustCompile(`^[0-9]{1,20}(\.[0-9]{1,20})?([numkMGTPE]|[KMGTPE]i|[eE][0-9]{1,2})?$`)

// plus adds what one node has. What no resource can be called, and amounts that make no
// sense, are left out.
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
