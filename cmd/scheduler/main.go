// Command scheduler runs only rik's scheduler. "rik scheduler" is the same.
package main

import (
	"os"

	"rik.dev/rik/internal/app"
)

func main() { os.Exit(app.Main("scheduler", os.Args[1:])) }
