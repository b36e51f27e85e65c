// Command rik runs rik: a whole server, a node, or one component. If the name of the executable
// (a link or a copy) is that of a component, it runs that component.
package main

import (
	"os"

	"rik.dev/rik/internal/app"
)

func main() { os.Exit(app.Main(app.Called(os.Args[0]), os.Args[1:])) }
