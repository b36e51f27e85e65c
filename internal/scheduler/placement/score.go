package placement

import (
	"k8s.io/apimachinery/pkg/labels"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// scale is the best that one scorer gives, before its weight.
const scale = 10_000

// What a scorer counts for in the sum. A taint that prefers to be avoided
// outweighs everything but spread over zones, which must survive the loss of
// one.
const (
	weightResources = 2
	weightApart     = 3
	weightZones     = 3
	weightSpread    = 3
	weightImages    = 1
	weightPreferred = 2
	weightTaints    = 3
)

// imageScale is less than the best of the other scorers: having an image saves one
// node one pull, and must not gather a workload where it happened to run first.
const imageScale = scale / 5

// nominalInstances is the number of instances that counts as a full node where
// the node sets no limit.
const nominalInstances = 1024

func labelsOf(n *node) labels.Set { return labels.Set(n.Labels) }

// scoreStatic is the part that depends on nothing that is placed.
func (s *Shape) scoreStatic(n *node) int64 {
	return weightImages*s.scoreImages(n) + weightPreferred*s.scorePreferred(n) + weightTaints*s.scoreTaints(n)
}

func (s *Shape) scoreImages(n *node) int64 {
	if len(s.images) == 0 || len(n.Images) == 0 {
		return 0
	}
	var there int64
	for _, image := range s.images {
		if _, ok := n.Images[image]; ok {
			there++
		}
	}
	return imageScale * there / int64(len(s.images))
}

func (s *Shape) scorePreferred(n *node) int64 {
	if s.preferredSum == 0 {
		return 0
	}
	var sum int64
	for i := range s.nodePreferred {
		if s.nodePreferred[i].selector.Matches(labelsOf(n)) {
			sum += s.nodePreferred[i].weight
		}
	}
	return scale * sum / s.preferredSum
}

func (s *Shape) scoreTaints(n *node) int64 {
	if s.untolerated(n, rikv1alpha1.TaintPreferNoSchedule) != nil {
		return 0
	}
	return scale
}

// scorePlaced is the part that depends on what is on the node.
func (s *Snapshot) scorePlaced(st *shapeState, n *node, at int32) int64 {
	score := weightResources * s.scoreResources(st.shape, n)
	if s.options.Strategy != BinPack {
		score += weightApart * scoreApart(st, at)
	}
	return score
}

// scoreResources is the mean share that would be free (Spread) or used
// (BinPack) of CPU, memory and the number of instances.
func (s *Snapshot) scoreResources(shape *Shape, n *node) int64 {
	free := &n.free
	sum := share(free.MilliCPU-shape.requests.MilliCPU, n.Allocatable.MilliCPU) +
		share(free.MemoryBytes-shape.requests.MemoryBytes, n.Allocatable.MemoryBytes)
	if n.Allocatable.Instances < unlimited {
		sum += share(free.Instances-1, n.Allocatable.Instances)
	} else {
		sum += share(nominalInstances-int64(len(n.occupants))-1, nominalInstances)
	}
	if s.options.Strategy == BinPack {
		return scale - sum/3
	}
	return sum / 3
}

func share(part, whole int64) int64 {
	if whole <= 0 || part <= 0 {
		return 0
	}
	// Allocatable stays below 2^50, so that the product with scale could pass
	// 63 bits; a float holds the ratio well enough.
	if part > 1<<48 {
		return int64(float64(part) / float64(whole) * scale)
	}
	return part * scale / whole
}

// scoreApart keeps the instances of a workload on different nodes.
func scoreApart(st *shapeState, at int32) int64 { return scale / (1 + st.workload.on(at)) }
