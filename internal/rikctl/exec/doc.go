// Package exec has the command exec. It runs a command in a container of an instance.
package exec

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
