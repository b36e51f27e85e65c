// Package fencing has the state machines, the constants and the times of the guarantee that
// fenced instances run in a cluster only while it is in contact with its kcp. ADR 9 gives the
// reasons, and docs/architecture.md has the diagram of the states.
//
// Several programs take part, and each acts in a thin shell of its own:
//
//   - [Lease]: the controller of the cluster sets challenges and learns from the answers when the
//     kcp was reachable (internal/controller/fence).
//   - [Renewals], [Acknowledgement]: the syncer answers challenges while its contact to the kcp is
//     good, and reports whether the cluster fences (internal/multicluster/syncer).
//   - [AtController]: the controller stops fenced Workloads (internal/controller/fence).
//   - [Proof], [AtNode]: each node asks the controller for the age of the proof and stops the
//     instances by itself (internal/riklet/objects and internal/riklet/manager).
//   - [Replaceable]: the splitter replaces the replicas of a silent cluster
//     (internal/multicluster/splitter).
//
// The package is pure: it has no clock, no lock and no connection. It imports only the standard
// library, because it is part of the node agent. A fence is the time that an object asks for
// (package api/rik/fence).
package fencing
