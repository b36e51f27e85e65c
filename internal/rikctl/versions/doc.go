// Package versions has the command version. It prints the versions of rikctl and of the server.
package versions

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
