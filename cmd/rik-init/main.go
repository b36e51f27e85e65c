// Command rik-init is process 1 of a microVM. It also sets up every process that it starts
// there, before that process runs its program. Package internal/riklet/guest/guestinit has all
// of its code.
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
		fmt.Fprintln(os.Stderr, "rik-init is the guest init of a microVM, and the kernel of the microVM starts it; see docs")
		os.Exit(2)
	}
}
