// Package controller continuously divides the roots of a kcp over its clusters. [splitter.Split]
// decides. This package watches objects and writes the decisions.
//
// One pass handles one root and its leaves. It writes in this order: the progress on the root,
// the targets of the objects that the leaves need, the leaves, and the status of the root. Every
// write is conditional on the resource version that the decision used. If the object has changed,
// the write fails and the root is processed again. Until the watch delivers a write, the pass
// uses the object as it was written.
//
// A second queue handles the objects that leaves need: ConfigMaps, Secrets, ServiceAccounts,
// claims, Services and Ingresses. Such an object has the targets of all leaves that need it. It
// loses a target when the last of these leaves has left that cluster.
//
// Reads: Clusters, Placements, CustomResourceDefinitions, NegotiatedAPIResources, the objects of
// the divided types, and the metadata of the objects that leaves need.
//
// Writes: leaves; the status and one annotation of roots; the targets and two annotations of the
// objects that leaves need; one finalizer of Clusters; Events about roots.
package controller
