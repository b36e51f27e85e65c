// Command crd-puller writes the types that a cluster serves as CRDs. "rik crd-puller" is the
// same.
package main

import (
	"os"

	"rik.dev/rik/internal/app"
)

func main() { os.Exit(app.Main("crd-puller", os.Args[1:])) }
