// Package why has the command why. It explains the placement and the problems of an instance. The
// explanation of other objects is a function that the root package gives it.
package why

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
