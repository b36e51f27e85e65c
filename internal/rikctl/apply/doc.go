// Package apply has the commands that make objects match files: apply, diff and deploy. They are
// kubectl's, with server-side apply as the default and with deployment files among the files,
// except for deploy, which is rik's own.
package apply

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
