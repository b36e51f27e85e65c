// Command rik-init is process 1 of a microVM, and the first moments of every process
// that it starts there: internal/riklet/guest/guestinit is all of it.
package main

import (
	"fmt"
	"os"

	"rik.dev/rik/internal/riklet/guest/guestinit"
)

func main() {
	switch {
	case os.Args[0] == guestinit.StageWord:
		guestinit.Stage()
	case os.Getpid() == 1:
		guestinit.Main()
	default:
		fmt.Fprintln(os.Stderr, "rik-init is the init of a microVM, and is started by its kernel; see docs")
		os.Exit(2)
	}
}
