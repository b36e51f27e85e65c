// Package fencemodel tries the fence of a rik cluster as a whole: the functions by which the
// syncer, the cluster's controller, its nodes and the kcp decide, each with a clock of its
// own, over a network that delays and loses, while all of them are cut off, stand still and
// start again. It has tests only.
package fencemodel
