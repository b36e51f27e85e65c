// Package splitter decides which clusters have which part of a root. A root is an object without
// a target. Its replicas are divided over clusters, or it goes undivided to one cluster or to
// each of them. The object that a cluster gets is a leaf.
//
// The package is pure. [Split] takes a [State] and returns the next step and its explanation. The
// caller writes the step. Splitting again after each change of the state converges: in the end
// the parts and the unplaced replicas add up to the whole, and another Split changes nothing. The
// package also decides:
//
//   - how each kind is divided ([KindOf])
//   - what other objects a workload needs ([Needs])
//   - what a leaf contains ([LeafName], [Render])
//   - how the statuses of the leaves are combined ([Aggregate])
//
// The package uses these words. A part is the number of replicas in the spec of a leaf. It is 1
// for a root that is not divided. A share is the part that a cluster has in the end. Most is the
// largest number of replicas that can run in a cluster, as far as is known. Parts that were
// lowered count until their cluster reports that they have stopped. A cluster is open, holding
// (it keeps what it has), or out. A lost cluster is out and does not answer.
package splitter
