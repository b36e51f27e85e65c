// Command deployment-splitter splits workloads without a target over the clusters of a kcp. "rik
// deployment-splitter" is the same.
package main

import (
	"os"

	"rik.dev/rik/internal/app"
)

func main() { os.Exit(app.Main("deployment-splitter", os.Args[1:])) }
