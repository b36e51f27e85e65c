package jointoken

import "time"

// Path is the path of tokens on the API server's port. GET lists them, POST creates one, and
// DELETE with an ID after the path revokes one.
const Path = "/rik/tokens/"

// Resource is the RBAC resource of tokens, in the group rik.dev. The verbs are list, create and
// delete.
const Resource = "jointokens"

// ServerResource is the RBAC resource of tokens for servers. Whoever has such a token gets the keys
// of the cluster, so creating one is not part of the permission for the tokens of nodes.
const ServerResource = "servertokens"

// Role is what a machine may become with a token.
type Role string

const (
	// RoleNode is for tokens of nodes.
	RoleNode Role = "node"
	// RoleServer is for tokens of servers.
	RoleServer Role = "server"
	// RoleParameter is the parameter of a POST with the role. The default is RoleNode.
	RoleParameter = "role"
)

// Request requests a new token.
type Request struct {
	// Seconds is the token's lifetime; 0 means no expiry.
	Seconds int64 `json:"seconds,omitempty"`
	// Description is for people.
	Description string `json:"description,omitempty"`
}

// Created is the answer to a Request. It is the only answer that contains the token.
type Created struct {
	Info  Info   `json:"info"`
	Token string `json:"token"`
}

// List is the answer to a request for all tokens, oldest first.
type List struct {
	Items []Info `json:"items"`
}

// Info describes a token without its secret part.
type Info struct {
	ID          string     `json:"id"`
	Role        Role       `json:"role"`
	Description string     `json:"description,omitempty"`
	Created     time.Time  `json:"created"`
	Expires     *time.Time `json:"expires,omitempty"` // nil: never
	// Uses is the number of certificates issued for the token.
	Uses     int64      `json:"uses"`
	LastUsed *time.Time `json:"lastUsed,omitempty"`
}
