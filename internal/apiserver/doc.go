// Package apiserver is rik's API server: Kubernetes' generic control plane with
// rik.dev beside it, over an etcd API, on one TLS port.
//
// The package owns the process-wide pieces: the data directory and its lock,
// certificates and credentials of the first start, authentication and
// authorization, the datastore, Kubernetes' own controllers, and the order in
// which all of this starts and stops. What rik.dev's objects mean is in
// registry; what happens because of them is in other components, which come in
// through [Config.Routes] and reach the server through [Server.LoopbackConfig].
//
// [Config] describes a server, [New] builds it, [Server.Run] runs it.
package apiserver
