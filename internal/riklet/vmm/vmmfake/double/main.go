// Command double is the process of vmmfake as a separate small program, for tests that start
// many of them.
package main

import (
	"os"

	"rik.dev/rik/internal/riklet/vmm/vmmfake"
)

func main() {
	vmmfake.Main()
	os.Exit(2) // called by hand
}
