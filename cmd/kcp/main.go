// Command kcp runs one place to deploy to, in front of many clusters; "rik kcp" is the
// same.
package main

import (
	"os"

	"rik.dev/rik/internal/app"
)

func main() { os.Exit(app.Main("kcp", os.Args[1:])) }
