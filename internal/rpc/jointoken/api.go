package jointoken

import "time"

// Path is where the API server's port serves tokens: GET lists them, POST makes
// one, and DELETE with an ID after the path revokes one.
const Path = "/rik/tokens/"

// Resource is what RBAC calls tokens, in the group rik.dev. The verbs are list,
// create and delete.
const Resource = "jointokens"

// Request asks for a new token.
type Request struct {
	// Seconds of its life; for ever when 0.
	Seconds int64 `json:"seconds,omitempty"`
	// Description is for people.
	Description string `json:"description,omitempty"`
}

// Created answers a Request. It is the only time that the token is told.
type Created struct {
	Info  Info   `json:"info"`
	Token string `json:"token"`
}

// List answers who asks for all tokens, the oldest first.
type List struct {
	Items []Info `json:"items"`
}

// Info is what is known of a token; its secret part is not.
type Info struct {
	ID          string     `json:"id"`
	Description string     `json:"description,omitempty"`
	Created     time.Time  `json:"created"`
	Expires     *time.Time `json:"expires,omitempty"` // absent: never
	// Uses counts the certificates that were given for it.
	Uses     int64      `json:"uses"`
	LastUsed *time.Time `json:"lastUsed,omitempty"`
}
