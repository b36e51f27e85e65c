// Package loader reads what there is into a [splitter.State]: of a root, the Placement that
// applies to it, the clusters, its leaves and its claims. Controllers read from caches and
// commands from the API server; both give a [Source]. It writes nothing.
//
// [Types] says which types are divided, [RoleOf] which of their objects are roots and which
// are leaves, and [Read] makes a [World] of a root.
package loader
