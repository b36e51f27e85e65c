// Package create has the command create. It creates workloads, instances, tenants and namespaces.
package create

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
