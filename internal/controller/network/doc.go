// Package network is the controller's part of the network between instances. It allocates an
// address range to every node and a virtual address to every workload that serves ports. It
// also maintains the netmap: the nodes, services and endpoints that are sent to each node.
//
// Allocations are stored in the objects: spec.podCIDR of a Node and status.addresses of a
// Workload. After a restart they are read from the lists of these objects. The reconcilers of
// these objects call Ranges and Addresses and write the result. Table follows the views. A
// Publisher sends it to the nodes, in the active controller only.
//
// Reads: Nodes, Workloads, WorkloadRevisions, the view of instances. Writes: nothing itself.
package network
