// Package proxy has the command proxy. It serves the API on this machine with the user's
// credentials.
package proxy

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
