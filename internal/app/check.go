package app

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/app/node"
	"rik.dev/rik/internal/integrity"
	"rik.dev/rik/internal/riklet"
)

// files are the directories and the datastore that check and repair work on.
type files struct {
	dataDir, stateDir       string
	endpoint, ca, cert, key string
	output                  string
}

func (f *files) add(s *pflag.FlagSet) {
	s.StringVar(&f.dataDir, "data-dir", cmp.Or(os.Getenv("DATABASE_LOCATION"), defaultDataDir), "directory of the cluster's data, certificates and credentials [DATABASE_LOCATION]")
	s.StringVar(&f.stateDir, "state-dir", riklet.DefaultStateDir, "directory of the node's images and records")
	s.StringVar(&f.endpoint, "datastore-endpoint", "", "external datastore: https://... of an etcd cluster, sqlite://, postgres:// or mysql://; embedded etcd by default")
	s.StringVar(&f.ca, "datastore-cafile", "", "file with the certificate authority of the external datastore")
	s.StringVar(&f.cert, "datastore-certfile", "", "file with the client certificate for the external datastore")
	s.StringVar(&f.key, "datastore-keyfile", "", "file with the client key for the external datastore")
}

// find leaves out a directory that does not exist and was not named.
func (f *files) find(s *pflag.FlagSet) error {
	for dir, flag := range map[*string]string{&f.dataDir: "data-dir", &f.stateDir: "state-dir"} {
		if _, err := os.Stat(*dir); errors.Is(err, fs.ErrNotExist) && !s.Changed(flag) {
			*dir = ""
		}
	}
	if f.dataDir == "" && f.stateDir == "" {
		return errors.New("this machine has no files of rik in the usual directories: name them with --data-dir and --state-dir")
	}
	return nil
}

func (f *files) server() apiserver.Config {
	return apiserver.Config{
		DataDir: f.dataDir, DatastoreEndpoint: f.endpoint, DatastoreCAFile: f.ca, DatastoreCertFile: f.cert, DatastoreKeyFile: f.key,
		Logger: slog.New(slog.DiscardHandler),
	}
}

func checkCommand() *cobra.Command {
	var f files
	c := &cobra.Command{
		Use:   "check",
		Short: "Check the files of a stopped server and node for damage",
		Long: "Check the files of a stopped server and node for damage: keys and certificates, the datastore with\n" +
			"the checksum of each stored object, and the records of the node's instances. It changes nothing.\n" +
			"Stop the services first; instances continue to run.\n\nExit codes: 0 if nothing is wrong, 1 otherwise.",
		Example: "  systemctl stop rik && rik check; systemctl start rik",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.find(c.Flags()); err != nil {
				return err
			}
			report, err := f.check(c)
			if err != nil {
				return err
			}
			return node.PrintCheck(c.OutOrStdout(), &report, f.output)
		},
	}
	f.add(c.Flags())
	c.Flags().StringVarP(&f.output, "output", "o", "", "format: json, or a table by default")
	return c
}

func (f *files) check(c *cobra.Command) (report integrity.Report, err error) {
	if f.dataDir != "" {
		if report, err = apiserver.CheckFiles(c.Context(), f.server()); err != nil {
			return report, err
		}
	}
	if f.stateDir != "" {
		ofNode, err := riklet.CheckFiles(f.stateDir)
		if err != nil {
			return report, err
		}
		report.Results = append(report.Results, ofNode.Results...)
	}
	return report, nil
}

func repairCommand() *cobra.Command {
	var f files
	c := &cobra.Command{
		Use:   "repair",
		Short: "Remove damaged objects and records from the files of a stopped server and node",
		Long: "Remove damaged objects and records from the files of a stopped server and node, and nothing else.\n" +
			"Each one is saved in a directory first. Prefer to restore a backup: a removed object is gone for\n" +
			"the cluster, and what belongs to it stops. Run rik check first, which names the objects.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.find(c.Flags()); err != nil {
				return err
			}
			return f.repair(c)
		},
	}
	f.add(c.Flags())
	return c
}

func (f *files) repair(c *cobra.Command) error {
	if f.dataDir != "" {
		removed, err := apiserver.RepairFiles(c.Context(), f.server())
		for _, key := range slices.Sorted(maps.Keys(removed)) {
			fmt.Fprintf(c.OutOrStdout(), "removed the object %q; it is saved in %s\n", key, removed[key])
		}
		if err != nil {
			return err
		}
		if len(removed) == 0 {
			fmt.Fprintf(c.OutOrStdout(), "%s: nothing to repair\n", f.dataDir)
		}
	}
	if f.stateDir == "" {
		return nil
	}
	return node.Repair(c.OutOrStdout(), f.stateDir)
}
