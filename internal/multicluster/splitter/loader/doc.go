// Package loader reads the input of a split into a [splitter.State]: the root, the Placement that
// applies to it, the clusters, its leaves and its claims. It reads from a [Source]. Controllers
// implement Source with caches, and commands with the API server. The package writes nothing.
//
// [Types] returns the types that are divided. [RoleOf] decides which of their objects are roots
// and which are leaves. [Read] returns the [RootState] of a root.
package loader
