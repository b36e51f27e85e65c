// Package rikctl is the command line of a rik cluster.
//
// Commands for any type (get, apply, delete, wait, label, ...) are kubectl's own code on top of
// rik's configuration. This package has the commands that need rik's types: create, describe,
// logs, exec, rollout, drain, why, top, lint and the configuration.
//
// Decisions are pure functions next to the command that acts on them: the next evictions of a
// drain, the progress of a rollout, the exit code of an error. The text that a command prints is
// rendered from objects, without a server.
package rikctl
