// Package apiserver is rik's API server. It is Kubernetes' generic control plane with the types
// of rik.dev, over an etcd API, on one TLS port.
//
// The package owns the process-wide parts: the data directory and its lock, the certificates and
// credentials of the first start, authentication, authorization, the datastore, and Kubernetes'
// own controllers. It decides in which order all of this starts and stops. Package
// registry implements the types of rik.dev. Other components act on the objects. They are added
// through [Config.Routes] and reach the server through [Server.LoopbackConfig].
//
// [Config] describes a server, [New] builds it, [Server.Run] runs it.
package apiserver
