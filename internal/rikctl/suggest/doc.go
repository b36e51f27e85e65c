// Package suggest finds the next step after a failed command line: a similar type, an object with
// the name that the user gave, or a configuration with credentials. It may ask the server.
package suggest

import "rik.dev/rik/internal/rikctl/access"

// tool looks at the configuration and the server through the Factory.
type tool struct{ *access.Factory }
