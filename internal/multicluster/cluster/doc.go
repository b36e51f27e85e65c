// Package cluster keeps the clusters that a kcp knows: it reaches each one, says how it
// is, brings in the types that it offers, and has objects carried to it.
//
// decide.go, importplan.go, synced.go and capacity.go are pure: they say what a Cluster's
// status and imports are to be. A member (member.go) is one cluster while it is connected:
// its probe, its importer and its syncer, each a loop of its own, so that a cluster that
// does not answer keeps no other waiting. The controller's reconciler joins the two.
//
// Reads: Clusters, APIResourceImports, the Secrets that Clusters name; of each physical
// cluster its health, version, nodes and types.
// Writes: the status of Clusters, except what their syncers write, and events about them;
// APIResourceImports; the finalizer of a Cluster; on detach the finalizers and annotations that its syncer
// left upstream; in pull mode the agent in the physical cluster.
package cluster
