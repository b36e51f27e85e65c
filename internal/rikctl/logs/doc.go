// Package logs has the command logs. It prints the logs of one instance or of all instances of a
// workload.
package logs

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
