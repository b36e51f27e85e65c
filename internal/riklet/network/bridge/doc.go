// Package bridge connects the instances of a node: with the bridge rik0, and a pair of virtual
// Ethernet devices for each instance.
//
// Pure functions compute the desired state (Desired, CheckOverlap). A Bridge applies it over
// netlink. It changes only what is different, and only devices that belong to rik. A Switch adds
// the addresses (package ipam). It implements instance.Network, which the drivers of instances use.
//
// An instance has its address with the prefix length 32. It reaches everything, including its
// neighbors on the node, through the gateway, which is the bridge's own address. So all of its
// traffic passes the node's IP layer in both directions. The rules of the node proxy apply to
// neighbors too, whether or not the kernel passes bridged frames to iptables
// (bridge-nf-call-iptables).
//
// An instance cannot forge addresses. A filter on the node's end of its devices drops frames that
// are not from its own addresses, including those of a guest's kernel behind a TAP. The neighbor
// entries of node and instances are permanent (guard.go).
//
// Nothing is written to disk. The alias of each device on the node's side contains the instance
// and its address. It disappears with the device.
package bridge
