// Package cluster manages the clusters that are registered in a kcp. It connects to each one,
// reports its state, imports its types, and runs its syncer.
//
// decide.go, importplan.go, synced.go and capacity.go are pure: they return the desired status
// and imports of a Cluster. A member (member.go) is one connected cluster with its probe, its
// importer and its syncer. Each of them is a loop of its own, so that a cluster that does not
// answer does not block another one. The controller's reconciler combines the two.
//
// Reads: Clusters, APIResourceImports, and the Secrets of Clusters; and each physical cluster's
// health, version, nodes and types.
//
// Writes: APIResourceImports; the status of Clusters, except the syncers' part; events about
// Clusters and one finalizer on them. On detach, it removes the finalizers and annotations that
// the syncer left upstream. In pull mode, it writes the agent in the physical cluster.
package cluster
