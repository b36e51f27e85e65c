// Package proxy makes the ports of workloads reachable from a node. The node's processes, its
// instances and clients of its addresses reach the ready instances, on whatever nodes these run.
//
// Render is the pure part: it computes the rules from what the node knows about the cluster. Proxy
// is the other part. It applies the rules whenever something changes, and restores them when
// another program removes them. It also makes the kernel forget the flows of endpoints that no
// longer exist.
//
// # The rules
//
// Table nat decides where a new connection goes. The kernel consults it once for each
// connection. Later packets take the same path.
//
//	RIKLET         from PREROUTING and OUTPUT: decides whether a packet is for the name
//	               server, a virtual address, or this node, and leads to one of the next
//	               three. Other packets return unchanged.
//	RIKLET-D...    DNS queries: to the node's name server.
//	RIKLET-V...    virtual addresses. A tree: every chain divides the addresses below it
//	               by four bits, until a few dozen are left. Thus a connection passes tens
//	               of rules and not one for each service.
//	RIKLET-P...    ports of the node, the same for port numbers, by protocol.
//	RIKLET-S-HASH  a service's port with several endpoints: selects one at random.
//	RIKLET-B-HASH  a part of the endpoints, if there are many: a tree again.
//	RIKLET-H-HASH  an endpoint in the network of another node: sets the mark, then sends.
//	RIKLET-POST    from POSTROUTING: sets an address of the node as the source of
//	               connections whose replies would otherwise not return through it.
//	RIKLET-LOOP... instances that connect to themselves, which is such a case.
//
// Table filter refuses connections without a ready endpoint, so that clients do not wait for a
// timeout. It accepts the other traffic of the cluster, whatever rules follow (Docker drops
// forwarded packets by default), and drops packets of unknown clients.
//
//	RIKLET-INPUT    from INPUT      RIKLET-FORWARD  from FORWARD
//	RIKLET-OUTPUT   from OUTPUT     RIKLET-N...     ports without a ready endpoint
//	RIKLET-X        unknown clients that send to addresses of the cluster
//	RIKLET-T...     tunnels of the overlay: from nodes of the cluster only
package proxy
