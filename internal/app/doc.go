// Package app puts the components together: it is the only place that sees them
// all. It reads flags and environment, makes certificates and listeners, and
// runs what a program is made of until a signal comes.
//
// server.go is the control plane, scheduler.go the scheduler alone, agent.go a
// node that joins from elsewhere; the node itself is put together in app/node,
// which stays clear of the control plane's libraries.
package app
