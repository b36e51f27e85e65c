package cluster

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

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

// addKube adds what a Kubernetes node has.
func (s *supply) addKube(node *corev1.Node) {
	s.capacity = plus(s.capacity, node.Status.Capacity)
	s.allocatable = plus(s.allocatable, node.Status.Allocatable)
}

// addRik adds what a rik node has. Its resources bear Kubernetes' names where they are
// the same.
func (s *supply) addRik(node *rikv1alpha1.Node) {
	s.capacity = plus(s.capacity, ofRik(node.Status.Capacity))
	s.allocatable = plus(s.allocatable, ofRik(node.Status.Allocatable))
}

// ofRik translates a rik node's resources: its instances are what Kubernetes calls pods.
func ofRik(list rikv1alpha1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, quantity := range list {
		switch name {
		case rikInstances:
			out[corev1.ResourcePods] = quantity
		case rikv1alpha1.ResourceDisk:
			out[corev1.ResourceEphemeralStorage] = quantity
		default:
			out[corev1.ResourceName(name)] = quantity
		}
	}
	return out
}

func plus(sum, part corev1.ResourceList) corev1.ResourceList {
	if sum == nil {
		sum = corev1.ResourceList{}
	}
	for name, quantity := range part {
		total, ok := sum[name]
		if !ok {
			total = *resource.NewQuantity(0, quantity.Format)
		}
		total.Add(quantity)
		sum[name] = total
	}
	return sum
}
