// Package placement decides which node runs an instance.
//
// It is a pure engine: it uses no clock, I/O, lock, logger or context. Options.Salt decides
// between equal nodes. A Snapshot holds the state of the cluster and belongs to one goroutine
// at a time. Place, Explain and Preempt read it and make no change that a caller can observe. A
// decision takes effect when the owner calls Put.
//
// Shapes make it fast: requests of one template share their filter and score work. For every
// shape in use the snapshot has a view. A view is a heap of the nodes that fit, ordered by
// score, and the snapshot has a log of the nodes that changed. A decision reads the top of the
// heap. A view evaluates again only the nodes that changed since its last use. A batch of one
// shape therefore costs the same per decision, however many nodes there are.
package placement
