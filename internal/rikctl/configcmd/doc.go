// Package configcmd has the command config. It shows and changes the configuration that package
// config reads.
package configcmd

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
