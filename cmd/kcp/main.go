// Command kcp runs an API server in front of many clusters. "rik kcp" is the same.
package main

import (
	"os"

	"rik.dev/rik/internal/app"
)

func main() { os.Exit(app.Main("kcp", os.Args[1:])) }
