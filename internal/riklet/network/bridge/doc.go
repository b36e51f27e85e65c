// Package bridge connects the instances of a node: the bridge rik0, and a pair
// of virtual Ethernet devices for each instance.
//
// What there should be is said by pure functions (Desired, Clash); a Bridge
// makes it so over netlink, changing only what is different and touching only
// what is ours. A Switch adds the addresses (package ipam) and is what drivers
// of instances use: instance.Network.
//
// An instance has its address with a length of 32 and reaches everything, its
// neighbors on the node included, by way of the gateway, which is the bridge's
// own address. So all of its traffic goes through the node's IP layer in both
// directions: the rules of the Node Proxy hold for neighbors too, whether or
// not the kernel passes bridged frames to iptables (bridge-nf-call-iptables).
//
// An instance speaks for nobody else: a filter on the node's end of its devices drops
// what is not from its own addresses, a guest's kernel behind a TAP included, and the
// neighbors that node and instances have of each other are permanent (guard.go).
//
// Nothing is written to a disk. The kernel keeps, in the alias of each device
// on the node's side, which instance it belongs to and which address that has;
// it goes with the device.
package bridge
