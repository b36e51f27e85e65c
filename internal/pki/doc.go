// Package pki is the cluster's own certificate authority and the leaf
// certificates that it signs. It knows nothing of Kubernetes and needs only the
// standard library, so that the node agent can use it too.
//
// [Authority] is the root: one ECDSA P-256 key and its self-signed certificate,
// kept in two files. It signs leaves directly; there is no intermediate.
// [Leaf] is one certificate and its key that a running process presents to its
// peers, and that renews itself while the process runs.
//
// The package owns file formats and lifetimes. It does not decide who gets a
// certificate: a caller of [Authority.SignCSR] has already established that the
// requester may have the subject it names.
package pki
