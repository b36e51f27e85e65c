// Package lint has the command lint. It checks files, with a dry run on the server if there is
// one.
package lint

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
