// Package backup has the command "rikctl backup". It creates backups of the cluster, and lists, shows
// and verifies them. Package rik.dev/rik/internal/backup is the format.
package backup

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
