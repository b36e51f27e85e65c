// Package splitter decides which clusters have which part of a root: an object without a
// target of its own whose replicas are divided over clusters, or that goes whole to one or
// to each of them. What a cluster gets is a leaf.
//
// It is pure. [Split] takes a [State] and returns the next step and its explanation;
// writing it is the caller's. Splitting again after each change of the world ends in a
// division in which the parts and what is unplaced are the whole, and in which a second
// look changes nothing. Besides, the package says which kinds are divided how ([KindOf]),
// what a workload needs beside it ([Needs]), what a leaf looks like ([Leaf.Name], [Render])
// and what the leaves' statuses add up to ([Aggregate]).
//
// Words: a part is the number of replicas that a leaf's spec has; of what is not divided
// it is 1. A share is the part that a cluster has in the end. Most is the largest number
// that can run in a cluster, for all that has been seen: parts that were lowered count until
// their cluster has said that they are gone. A cluster is open, or it holds what it has, or
// it is out. A lost one is out and cannot be asked.
package splitter
