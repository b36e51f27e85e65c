// Package describe has the command describe. It is kubectl's, with describers for rik's own types.
// The describers render objects and use no server.
package describe

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
