package app

import (
	"github.com/spf13/cobra"

	"rik.dev/rik/internal/app/node"
	"rik.dev/rik/internal/app/recovery"
	"rik.dev/rik/internal/doctor"
)

// Commands returns the commands of a control plane, for the reference pages. The packages node
// and multicluster have the other commands.
func Commands() []*cobra.Command {
	return []*cobra.Command{serverCommand(), demoCommand(), controllerCommand(), schedulerCommand(), simulateCommand(), recovery.Command(), datastoreCommand(), checkCommand(), repairCommand(), node.DoctorCommand(doctor.RoleServer)}
}

// Program returns the program rik with all its commands.
func Program() *cobra.Command { return commandOf("rik") }
