// Command rik runs rik: a whole server, a node, or one component. Called by the name of
// a component (a link to it, or a copy) it is that component's program.
package main

import (
	"os"

	"rik.dev/rik/internal/app"
)

func main() { os.Exit(app.Main(app.Called(os.Args[0]), os.Args[1:])) }
