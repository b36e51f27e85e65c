// Package get has the command get. It is kubectl's, and also lists and watches apps and functions.
package get

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
