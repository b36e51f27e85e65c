package placement

import (
	"k8s.io/apimachinery/pkg/labels"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// scale is the highest score of one scorer, before its weight.
const scale = 10_000

// Weights of the scorers in the sum. The taint effect PreferNoSchedule outweighs every scorer
// except the spread over zones, because a workload must survive the loss of a zone.
const (
	weightResources = 2
	weightApart     = 3
	weightZones     = 3
	weightSpread    = 3
	weightImages    = 1
	weightPreferred = 2
	weightTaints    = 3
)

// imageScale is lower than the highest score of the other scorers. An image on a node saves one
// pull, and must not gather a workload on the node where it first ran.
const imageScale = scale / 5

// nominalInstances is the number of instances at which a node without a limit counts as full.
const nominalInstances = 1024

func labelsOf(n *node) labels.Set { return labels.Set(n.Labels) }

// scoreStatic is the part of the score that does not depend on placed instances.
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

// scorePlaced is the part of the score that depends on the instances on the node.
func (s *Snapshot) scorePlaced(st *shapeState, n *node, at int32) int64 {
	score := weightResources * s.scoreResources(st.shape, n)
	if s.options.Strategy != BinPack {
		score += weightApart * scoreApart(st, at)
	}
	return score
}

// scoreResources is the mean share of CPU, memory and instances that would be free (Spread) or
// used (BinPack).
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
	// Allocatable stays below 2^50, and its product with scale could exceed 63 bits. A float
	// holds the ratio with enough precision.
	if part > 1<<48 {
		return int64(float64(part) / float64(whole) * scale)
	}
	return part * scale / whole
}

// scoreApart spreads the instances of a workload over different nodes.
func scoreApart(st *shapeState, at int32) int64 { return scale / (1 + st.workload.on(at)) }
