// Package deletion has the command delete. It is kubectl's, and also deletes apps and functions by
// their kind or by their name alone.
package deletion

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
