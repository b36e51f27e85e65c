// Package server has the command server. It lists, removes and replaces the servers of a cluster.
package server

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
