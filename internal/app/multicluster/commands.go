// Package multicluster puts the programs together that make one place of many clusters.
// Each is a command: of rik, and a program of its own.
package multicluster

import "github.com/spf13/cobra"

// Commands are those of rik that are about many clusters.
func Commands() []*cobra.Command {
	return []*cobra.Command{kcpCommand(), clusterControllerCommand(), deploymentSplitterCommand(), syncerCommand(), crdPullerCommand(), compatCommand()}
}
