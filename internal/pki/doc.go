// Package pki has the cluster's certificate authority and the leaf certificates that it signs.
// It is independent of Kubernetes and needs only the standard library, so that the node agent
// can use it too.
//
// [Authority] is the root: one ECDSA P-256 key and its self-signed certificate, in two files. It
// signs leaves directly; there is no intermediate. [Leaf] is one certificate with its key. A
// running process presents it to its peers, and it renews itself while the process runs.
//
// The package owns file formats and lifetimes. It does not decide who gets a certificate: a
// caller of [Authority.SignCSR] must have established that the requester may have the subject.
package pki
