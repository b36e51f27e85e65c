// Package runner implements the driver of a node: it runs Pods with an OCI runtime, Functions in
// microVMs and Apps as plain processes.
//
// A Driver owns one machine for each instance. A machine is a goroutine. It alone decides the
// next step of its instance, and it alone changes the instance's record. Thus no instance waits
// for another. Slow work (images, mounts, runtimes, probes) runs in other goroutines, which post
// their results to the machine. Pure functions decide what to do next (decide, afterReboot,
// delay). Everything that the driver creates is a lifecycle step. The driver can undo each step
// with nothing but the instance's UID.
//
// All files of an instance are in three places, so that the driver finds them again after a
// crash: <Run>/pods/<uid> (secrets, bundles and sockets, in memory), <Root>/pods/<uid> (logs,
// exit codes, volumes) and the cgroup <CgroupParent>/<uid>. Root file systems and runtime states
// are named pod.<uid>.<container>. Config.Network manages the instance's network attachment, also
// by UID.
package runner
