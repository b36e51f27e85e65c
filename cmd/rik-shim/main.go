// Command rik-shim supervises the containers of one Pod. The riklet starts it, and it continues
// to run when the riklet stops. Users do not call it. It is built without cgo and has few
// imports, because every Pod of a node has such a process.
//
// Two other packages use it too: package launch to become a plain process, and package await to
// represent a command in a container.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"

	"rik.dev/rik/internal/riklet/shim"
	"rik.dev/rik/internal/riklet/shim/await"
	"rik.dev/rik/internal/riklet/shim/launch"
	"rik.dev/rik/internal/riklet/shim/server"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == launch.Word {
		launch.Run()
	}
	if len(os.Args) > 1 && os.Args[1] == await.Word {
		await.Run(os.Args[2:])
	}
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "rik-shim:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var settings shim.Settings
	if len(args) != 1 || json.Unmarshal([]byte(args[0]), &settings) != nil {
		return fmt.Errorf("the riklet starts this program; do not start it yourself")
	}
	file := os.NewFile(shim.ListenFD, "listener")
	listener, err := net.FileListener(file)
	if err != nil {
		return fmt.Errorf("taking over the listening socket: %w", err)
	}
	unix, ok := listener.(*net.UnixListener)
	if !ok {
		return fmt.Errorf("descriptor %d is not a unix socket", shim.ListenFD)
	}
	unix.SetUnlinkOnClose(false)
	_ = file.Close()
	return server.Run(settings, unix)
}
