package app

import "github.com/spf13/cobra"

// Commands returns the commands of a control plane, for the reference pages. The packages node
// and multicluster have the other commands.
func Commands() []*cobra.Command {
	return []*cobra.Command{serverCommand(), controllerCommand(), schedulerCommand(), simulateCommand()}
}

// Program returns the program rik with all its commands.
func Program() *cobra.Command { return commandOf("rik") }
