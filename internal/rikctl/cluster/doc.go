// Package cluster has the command cluster. It registers clusters with a kcp, rotates their
// credentials and unregisters them.
package cluster

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
