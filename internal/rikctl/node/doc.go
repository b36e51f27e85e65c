// Package node has the commands that operate nodes: cordon, uncordon, drain, taint and node
// confirm.
package node

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use the clients of the Factory.
type tool struct{ *access.Factory }
