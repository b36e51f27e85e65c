// Command controller runs only rik's controller. "rik controller" is the same.
package main

import (
	"os"

	"rik.dev/rik/internal/app"
)

func main() { os.Exit(app.Main("controller", os.Args[1:])) }
