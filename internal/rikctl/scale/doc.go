// Package scale has the commands that set how many instances run, or whether they run: scale,
// suspend and resume.
package scale

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use the clients of the Factory.
type tool struct{ *access.Factory }
