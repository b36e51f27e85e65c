// Package multicluster assembles the programs that combine many clusters. Each of them is a
// subcommand of rik, and also a program of its own.
package multicluster

import "github.com/spf13/cobra"

// Commands returns the subcommands of rik for many clusters.
func Commands() []*cobra.Command {
	return []*cobra.Command{kcpCommand(), clusterControllerCommand(), deploymentSplitterCommand(), syncerCommand(), crdPullerCommand(), compatCommand()}
}
