// Command compat compares two CRDs. "rik compat" is the same.
package main

import (
	"os"

	"rik.dev/rik/internal/app"
)

func main() { os.Exit(app.Main("compat", os.Args[1:])) }
