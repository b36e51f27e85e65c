// Package rikctl is the command line of a rik cluster.
//
// It composes the commands and runs one command line: Execute turns the error of a command into a
// message, a next step and an exit code. Each group of commands is a package below this one, and
// groups do not import each other. Commands for any type (get, apply, delete, wait, label, ...)
// are kubectl's own code on top of rik's configuration; the others need rik's types.
//
// Decisions are pure functions next to the command that acts on them: the next evictions of a
// drain, the progress of a rollout, the exit code of an error. The text that a command prints is
// rendered from objects, without a server.
package rikctl
