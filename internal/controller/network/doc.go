// Package network is the controller's side of the network between instances: it
// gives every node its range of addresses and every workload that serves ports
// its virtual address, and keeps the table of nodes, services and endpoints of
// which nodes are told.
//
// What was given is kept in the objects (spec.podCIDR of a Node, status.addresses
// of a Workload) and in memory found again from their lists; the reconcilers of
// those objects ask Ranges and Addresses and write. Table follows the views and
// is told to nodes through a Publisher, by the active controller alone.
//
// Reads: Nodes, Workloads, WorkloadRevisions, the view of instances. Writes:
// nothing itself.
package network
