// Package app assembles the components. It is the only package that imports all of them. It
// reads flags and environment variables, creates certificates and listeners, and runs the parts
// of a program until a signal arrives.
//
// server.go has the control plane, and scheduler.go the scheduler. Package app/node assembles a
// node, also one that joins a cluster on another machine. It must not import the control plane's
// libraries.
package app
