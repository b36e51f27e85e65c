// Package proxy makes the ports of workloads reachable from a node: its own
// processes, its instances and whoever sends to one of its addresses get to the
// ready instances, wherever these run.
//
// Render is the pure half: what the node knows of the cluster goes in, the rules
// come out. Proxy is the other half: it brings them into the kernel whenever
// something changed, puts them back when somebody took them away, and makes the
// kernel forget the flows of endpoints that are gone.
//
// # The rules
//
// Table nat decides where a new connection goes. The kernel asks it once for each
// connection; the packets that follow take the same way.
//
//	RIKLET         from PREROUTING and OUTPUT: is it for the name server, a virtual
//	               address, or this node? To one of the next three, or on as if nothing was there.
//	RIKLET-D...    questions for names: to the node's name server.
//	RIKLET-V...    virtual addresses. A tree: every chain divides the addresses
//	               below it by four bits, until a few dozen are left, so that a
//	               connection passes tens of rules and not one for each service.
//	RIKLET-P...    ports of the node, the same for port numbers, by protocol.
//	RIKLET-S-HASH  a service's port with several endpoints: one of them by chance.
//	RIKLET-B-HASH  a part of the endpoints, where there are many: a tree again.
//	RIKLET-H-HASH  an endpoint in the network of another node: noted, then sent.
//	RIKLET-POST    from POSTROUTING: connections whose replies would not come back
//	               this way get an address of ours.
//	RIKLET-LOOP... instances that reached themselves, which is such a case.
//
// Table filter refuses what nobody answers, so that clients need not wait for it,
// and lets the rest pass, whatever comes after us (Docker drops by default).
//
//	RIKLET-INPUT    from INPUT      RIKLET-FORWARD  from FORWARD
//	RIKLET-OUTPUT   from OUTPUT     RIKLET-N...     ports of which no endpoint is ready
//	RIKLET-X        strangers that send to addresses of the cluster
//	RIKLET-T...     tunnels of the overlay: from nodes of the cluster only
package proxy
