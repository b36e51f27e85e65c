// Package servers has the JSON types with which the API shows and removes the servers of a
// cluster.
package servers

import "time"

// Path is served next to the API. GET lists the servers. DELETE with a name after the path removes
// one.
const Path = "/rik/servers/"

// Resource is the RBAC resource of servers, in the group rik.dev. The verbs are list and delete.
const Resource = "servers"

// Server is a server of the cluster.
type Server struct {
	Name string `json:"name"`
	// API is the URL of its API. Nodes and Workers are the host and port of its services for nodes.
	API     string `json:"api"`
	Nodes   string `json:"nodes"`
	Workers string `json:"workers"`
	// Peer is its URL for other servers. It is empty if the servers share an external datastore.
	Peer string `json:"peer,omitempty"`
	// Member is the ID of its member of the embedded etcd, in hexadecimal digits.
	Member string `json:"member,omitempty"`
	// Identity is the identity of its controller in the Lease. It changes with every start.
	Identity string    `json:"identity,omitempty"`
	Version  string    `json:"version,omitempty"`
	Joined   time.Time `json:"joined"`
	// Removed is when an administrator removed the server.
	Removed *time.Time `json:"removed,omitempty"`
}

// Row is one server in a list.
type Row struct {
	Server
	// Ready reports whether its API answers.
	Ready bool `json:"ready"`
	// Active reports whether its controller is the active one.
	Active bool `json:"active"`
	// Problem says why the server is not ready, or cannot join or leave. It may be empty.
	Problem string `json:"problem,omitempty"`
}

// List is the answer to a request for the servers, by name.
type List struct {
	// Revision increases when a server joins, leaves or moves.
	Revision int64 `json:"revision"`
	Items    []Row `json:"items"`
}
