// Package negotiate has the command api negotiate. It shows what a kcp would publish for the types
// that clusters offer.
package negotiate

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
