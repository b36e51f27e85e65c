// Package runner is the driver that runs Pods: containers that share a network,
// by means of an OCI runtime.
//
// A Driver owns, for each instance, one machine: a goroutine that alone decides
// and alone changes the instance's record, so that no instance waits for
// another. What takes time (images, mounts, runtimes, probes) runs beside it
// and posts its result back. What to do next is decided by pure functions
// (decide, afterReboot, delay); what to make and how to take it back is written
// as lifecycle steps that can be undone from the UID alone.
//
// Everything of an instance lies under three names, so that it can be found
// again by whoever comes after a crash: <Run>/pods/<uid> (secrets, bundles and
// sockets, in memory), <Root>/pods/<uid> (logs, exit codes, volumes) and the
// cgroup <CgroupParent>/<uid>. Roots and runtime states are named
// pod.<uid>.<container>. Its place in the network is the business of
// Config.Network, which knows it by the UID too.
package runner
