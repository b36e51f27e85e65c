package app

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/apiserver/datastore"
)

// reclaimTimeout bounds a defragmentation.
const reclaimTimeout = 30 * time.Minute

// datastoreCommand returns the commands for the datastore of this machine.
func datastoreCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "datastore",
		Short: "Maintain the datastore of the server on this machine",
		Args:  noArgs,
	}
	c.AddCommand(reclaimCommand())
	return c
}

func reclaimCommand() *cobra.Command {
	dir := env("DATABASE_LOCATION", defaultDataDir)
	c := &cobra.Command{
		Use:   "reclaim",
		Short: "Return free space of the embedded etcd to the disk, and clear the alarm of a full quota",
		Long: "Return free space of the embedded etcd to the disk, and clear the alarm of a full quota.\n\n" +
			"The server must run. Requests wait until the command ends. Old revisions are removed, so\n" +
			"that watches that are behind begin again.",
		Example: "  sudo rik datastore reclaim",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), reclaimTimeout)
			defer cancel()
			r, err := datastore.Reclaim(ctx, apiserver.DatastoreDir(dir))
			if err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "The database had %d MiB and has %d MiB now; %d MiB are in use, and the quota is %d MiB.\n", r.Before>>20, r.After>>20, r.InUse>>20, r.Quota>>20)
			switch {
			case r.Cleared:
				fmt.Fprintln(c.OutOrStdout(), "The datastore accepts writes again.")
			case r.Full:
				return fmt.Errorf("the quota is still used up: delete objects, or start the server with a --datastore-quota above %d MiB", r.Quota>>20)
			}
			return nil
		},
	}
	c.Flags().StringVar(&dir, "data-dir", dir, "directory of the cluster's data, certificates and credentials [DATABASE_LOCATION]")
	return c
}
