// Package portforward has the command port-forward. It forwards ports of this machine to ports of
// an instance; package forward has the listeners.
package portforward

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
