// Command cluster-controller runs the controllers of a kcp in a separate process. "rik
// cluster-controller" is the same.
package main

import (
	"os"

	"rik.dev/rik/internal/app"
)

func main() { os.Exit(app.Main("cluster-controller", os.Args[1:])) }
