// Package controller continuously divides the roots of a kcp over its clusters. [splitter.Split]
// decides. This package watches objects and writes the decisions.
//
// One pass handles one root and its leaves. It writes in this order: the progress on the root,
// the targets of the objects that the leaves need, the leaves, and the status of the root. Every
// write is conditional on the resource version that the decision used. If the object has changed,
// the write fails and the root is processed again. Until the watch delivers a write, the pass
// uses the object as it was written.
//
// The package follower handles the objects that leaves need, such as ConfigMaps and Services. This
// package answers its questions about leaves and clusters, and processes the roots that depend on
// a follower that has changed.
//
// Reads: Clusters, Placements, CustomResourceDefinitions, NegotiatedAPIResources, and the
// objects of the divided types.
//
// Writes: leaves; the status and one annotation of roots; one finalizer of Clusters; Events about
// roots.
package controller
