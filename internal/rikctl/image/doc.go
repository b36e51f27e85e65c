// Package image has the commands "rikctl image ls", "pull", "import", "export" and "rm", for the images
// of nodes. Package nodeimage defines the requests.
package image

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
