// Package split has the commands that explain how a kcp splits objects over clusters: plan and
// whatif, and the part of why that is about split objects. They decide with the code of the
// splitter on a snapshot of the kcp, and write nothing.
package split

import "rik.dev/rik/internal/rikctl/access"

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }
