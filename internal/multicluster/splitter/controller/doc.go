// Package controller divides the roots of a kcp over its clusters, and goes on doing
// so: [splitter.Split] decides, this package watches and writes.
//
// One pass is over one root with its leaves. It writes, in this order: the progress on the
// root, the targets of what the leaves need, the leaves, and the root's status. Every
// write is for the version that was decided on; a write that comes too late fails, and the
// root is looked at anew. What was just written counts as it was written until the watch
// shows it.
//
// Another queue is over what leaves need: ConfigMaps, Secrets, ServiceAccounts, claims,
// Services and Ingresses. They have the targets of all leaves that need them, and lose one
// when the last of these leaves has left the cluster.
//
// Reads: Clusters, Placements, CustomResourceDefinitions, NegotiatedAPIResources, the
// objects of the types that are divided, and of what leaves need the metadata.
// Writes: leaves; of roots the status and one annotation; of what leaves need the targets
// and two annotations; of Clusters one finalizer; Events about roots.
package controller
