// Command cluster-controller runs the controllers of a kcp beside it; "rik
// cluster-controller" is the same.
package main

import (
	"os"

	"rik.dev/rik/internal/app"
)

func main() { os.Exit(app.Main("cluster-controller", os.Args[1:])) }
