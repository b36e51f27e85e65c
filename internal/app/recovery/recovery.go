// Package recovery restores a server from a backup before it starts, and has the command "rik
// backup", which needs no server.
package recovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/apiserver/recovery"
	"rik.dev/rik/internal/app/node"
	"rik.dev/rik/internal/backup"
	"rik.dev/rik/internal/backup/keyflags"
	"rik.dev/rik/internal/backup/place"
)

// Flags are the flags with which a server is restored.
type Flags struct {
	from string
	keys keyflags.Identities
}

// Add adds the flags to those of a server.
func (f *Flags) Add(s *pflag.FlagSet) {
	f.keys.Prefix = "restore-"
	s.StringVar(&f.from, "restore", "", "restore this backup, a file or s3://bucket/name, before the first start; the data directory and the datastore must be empty. Without effect once it is complete")
	f.keys.Add(s)
}

// Validate reports flags that do not belong together.
func (f *Flags) Validate() error {
	if f.from == "" && f.keys.Given() {
		return errors.New("--restore-identity and --restore-passphrase-file need --restore")
	}
	return nil
}

// Run restores the backup unless that is complete. Without --restore it refuses a data directory
// with a part of a backup.
func (f *Flags) Run(ctx context.Context, cfg apiserver.Config) error {
	if f.from == "" {
		return recovery.Unfinished(cfg.DataDir)
	}
	record, err := recovery.ReadRecord(cfg.DataDir)
	if err != nil {
		return err
	}
	if record != nil && record.Complete && record.From == f.from {
		cfg.Logger.Info("the backup was restored before; --restore is not needed any more", "backup", record.Backup, "restored", record.Restored)
		return nil
	}
	keys, err := f.keys.Get()
	if err != nil {
		return err
	}
	open, err := opener(ctx, f.from)
	if err != nil {
		return err
	}
	_, err = apiserver.RestoreBackup(ctx, cfg, f.from, open, keys)
	return err
}

// opener opens a backup in its place, as often as it is read.
func opener(ctx context.Context, address string) (recovery.Opener, error) {
	at, name, err := place.Parse(address)
	if err != nil {
		return nil, err
	}
	if name == "" {
		return nil, fmt.Errorf("%s is a directory or a prefix: name the backup in it; `rikctl backup list %s` lists them", address, address)
	}
	return func() (io.ReadCloser, error) { return at.Open(ctx, name) }, nil
}

// Command returns the command "rik backup".
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "backup",
		Short: "Verify backups without a server",
		Long:  "Verify backups without a server. rikctl backup creates, lists and shows them.",
	}
	c.AddCommand(verifyCommand())
	return c
}

func verifyCommand() *cobra.Command {
	var keys keyflags.Identities
	var output string
	c := &cobra.Command{
		Use:   "verify FILE|s3://BUCKET/NAME",
		Short: "Restore a backup into a scratch datastore and compare every object",
		Long: "Restore a backup into a scratch datastore and compare every object. The scratch datastore\n" +
			"is an etcd in a temporary directory, which needs about three times the size of the\n" +
			"objects. TMPDIR chooses its place. Nothing else is read, and no port is opened.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("%w: name one backup", node.ErrUsage)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if output != "" && output != "json" {
				return fmt.Errorf("%w: --output %q is not supported: use json", node.ErrUsage, output)
			}
			m, err := verify(c.Context(), args[0], &keys)
			if err != nil {
				return err
			}
			if output == "json" {
				m.Parts = nil
				return json.NewEncoder(c.OutOrStdout()).Encode(m)
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s can be restored: %d objects at revision %d, created %s by rik %s\n", args[0], m.Objects, m.Revision, m.Created.Format("2006-01-02 15:04:05 MST"), m.Version)
			return err
		},
	}
	keys.Add(c.Flags())
	c.Flags().StringVarP(&output, "output", "o", "", "json, or a sentence when empty")
	return c
}

func verify(ctx context.Context, address string, flags *keyflags.Identities) (*backup.Manifest, error) {
	keys, err := flags.Get()
	if err != nil {
		return nil, err
	}
	open, err := opener(ctx, address)
	if err != nil {
		return nil, err
	}
	return Verify(ctx, open, keys, os.TempDir())
}

// Verify restores a backup into a scratch directory below dir, compares every object, and removes
// the directory.
func Verify(ctx context.Context, open recovery.Opener, keys backup.Identities, dir string) (m *backup.Manifest, err error) {
	scratch, err := os.MkdirTemp(dir, "rik-verify-")
	if err != nil {
		return nil, fmt.Errorf("creating a scratch directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	// The profile is that of the backup.
	in, err := open()
	if err != nil {
		return nil, err
	}
	header, err := backup.ReadHeader(ctx, in, keys)
	if err = errors.Join(err, in.Close()); err != nil {
		return nil, err
	}
	return apiserver.VerifyBackup(ctx, apiserver.Config{
		DataDir: scratch, Profile: apiserver.Profile(header.Profile), AuditLog: apiserver.AuditOff,
		Logger: slog.New(slog.DiscardHandler),
	}, open, keys)
}
