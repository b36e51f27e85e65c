// Package top has the command top. It shows the resource usage of nodes and instances.
package top

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
