// Command syncer copies objects from a kcp to one cluster, and their status back. "rik syncer"
// is the same.
package main

import (
	"os"

	"rik.dev/rik/internal/app"
)

func main() { os.Exit(app.Main("syncer", os.Args[1:])) }
