// Package runner implements the driver of a node: it runs Pods with an OCI runtime, Functions in
// microVMs and Apps as plain processes.
//
// A Driver has one runner for each instance: a goroutine, with its state in the type machine. The
// runner alone decides the next step of its instance, and it alone changes the instance's record.
// Thus no instance waits for another. Slow work (images, mounts, runtimes, probes) runs in other
// goroutines, which post their results to the runner. Pure functions decide what to do next
// (decide, afterReboot, delay). The resources of an instance are created by lifecycle steps, in the
// order of steps.go. The driver can undo each step with nothing but the instance's UID.
//
// The package does not know how a kind of instance works. The engines do: runner/oci,
// runner/microvm and runner/process. They are behind the contract in runner/engine, and engines.go
// lists them.
//
// The files of an instance are in three places, where the driver finds them again after a crash.
// <Run>/pods/<uid> has secrets, bundles and sockets, in memory. <Root>/pods/<uid> has logs, exit
// codes and volumes. The third place is the cgroup <CgroupParent>/<uid>. Root file systems and
// runtime states are named pod.<uid>.<container>. The VMM of a microVM has its directory in
// <Run>/vm/<uid>. Config.Network manages the instance's network attachment, also by UID.
package runner
