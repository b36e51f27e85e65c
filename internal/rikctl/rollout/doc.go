// Package rollout has the command rollout with its subcommands. The progress of a rollout is a
// pure function of the workload.
package rollout

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
