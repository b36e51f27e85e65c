// Package rikctl is the command line of a rik cluster.
//
// What kubectl can do for any type (get, apply, delete, wait, label, ...) is
// kubectl's own code with rik's configuration under it. What is written here is
// what knows rik's types: create, describe, logs, exec, rollout, drain, why,
// top, lint and the configuration.
//
// Decisions are pure functions beside the command that acts on them (a drain's
// next evictions, a rollout's progress, an error's exit code), and the text
// that a command prints is rendered from objects, without a server.
package rikctl
