// Package placement decides which node runs an instance.
//
// It is a pure engine: no clock, no I/O, no lock, no logger and no context.
// Chance comes in as Options.Salt. A Snapshot holds what is known of the
// cluster and belongs to one goroutine at a time; Place, Explain and Preempt
// read it and change nothing that a caller can observe. What was decided takes
// effect when the owner calls Put.
//
// Speed comes from Shape: requests of one template share their filter and score
// work. For every shape in use the snapshot keeps a view, which is a heap of
// the nodes that fit, ordered by score, and a log of the nodes that changed. A
// decision looks at the top of the heap; a view re-evaluates only the nodes that
// changed since it was last asked, so a batch of one shape costs the same per
// decision whatever the number of nodes.
package placement
