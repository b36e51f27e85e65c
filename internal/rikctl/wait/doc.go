// Package wait has the command wait. It is kubectl's, with a short form for phases, and it ends
// when the object is deleted.
package wait

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
