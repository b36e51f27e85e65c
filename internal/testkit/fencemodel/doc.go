// Package fencemodel tests the fence of a rik cluster as a whole. It combines the decision
// functions of the syncer, the cluster's controller, its nodes and the kcp. Each of them has its
// own clock, and a simulated network delays and loses messages, while all of them are cut off,
// stall and restart. The package has only tests.
package fencemodel
