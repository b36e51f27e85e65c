// Package token has the command token. It creates, lists and revokes join tokens.
package token

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
