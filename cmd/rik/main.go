// Command rik runs rik: a whole server, a node, or one component.
package main

import (
	"os"

	"rik.dev/rik/internal/app"
)

func main() { os.Exit(app.Main("rik", os.Args[1:])) }
