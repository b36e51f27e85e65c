package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"

	"rik.dev/rik/internal/backup"
	"rik.dev/rik/internal/backup/keyflags"
	"rik.dev/rik/internal/backup/place"
	"rik.dev/rik/internal/executable"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/printer"
	"rik.dev/rik/internal/rikctl/progress"
)

// NewCommand returns the command "rikctl backup".
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	return cmdline.Group(&cobra.Command{
		Use:     "backup",
		Aliases: []string{"backups"},
		Short:   "Create, list, show and verify backups of the cluster",
		Long: `Create, list, show and verify backups of the cluster. A backup is one file. It has all
objects at one revision, the certificate authority, and all keys: "rik server --restore"
makes a server of it on an empty machine, with any kind of datastore.

A backup lies in a file, a directory, or an S3-compatible store: s3://bucket/prefix. The
environment variables AWS_ENDPOINT_URL_S3, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_REGION and AWS_CA_BUNDLE describe the store.`,
	}, t.createCommand(), t.listCommand(), t.showCommand(), t.verifyCommand())
}

func (t *tool) createCommand() *cobra.Command {
	var keys keyflags.Recipients
	cmd := &cobra.Command{
		Use:   "create FILE|DIRECTORY|s3://BUCKET/PREFIX",
		Short: "Create a backup of the cluster",
		Long: `Create a backup of the cluster. In a directory and below a prefix, its name has the time.
Only members of the group system:masters may create one, such as the administrator of
admin.kubeconfig. The file is encrypted on this machine, and complete when it appears.`,
		Example: cmdline.Example(`
rikctl backup create rik.rikbackup --passphrase-file passphrase
rikctl backup create /var/backups/rik/ --recipient age1...
rikctl backup create s3://backups/rik --recipient "$(cat ~/.ssh/id_ed25519.pub)"`),
		Args: cmdline.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			to, err := keys.Get()
			if err != nil {
				return cmdline.Wrap(cmd, err)
			}
			return t.create(cmd.Context(), given[0], to)
		},
	}
	keys.Add(cmd.Flags())
	_ = cmd.MarkFlagFilename("passphrase-file")
	return cmd
}

func (t *tool) create(ctx context.Context, address string, to backup.Recipients) error {
	at, name, err := place.Parse(address)
	if err != nil {
		return err
	}
	c, _, err := t.RESTClient()
	if err != nil {
		return err
	}
	body, err := c.Post().AbsPath(backup.Path).Stream(ctx)
	if err != nil {
		return fmt.Errorf("creating the backup: %w", err)
	}
	defer func() { _ = body.Close() }()
	size := int64(0)
	name = cmp.Or(name, backup.Name(time.Now()))
	m, err := backup.Seal(ctx, to, body, func(ctx context.Context, content io.Reader) error {
		return at.Put(ctx, name, &counter{content, &size})
	})
	if err != nil {
		return fmt.Errorf("creating the backup: %w", err)
	}
	_, err = fmt.Fprintf(t.Streams.Out, "%s: %d objects at revision %d, %s\n", at.Path(name), m.Objects, m.Revision, progress.Bytes(size))
	return err
}

// counter counts what is read.
type counter struct {
	io.Reader
	n *int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	*c.n += int64(n)
	return n, err
}

func (t *tool) listCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "list [DIRECTORY|s3://BUCKET/PREFIX]",
		Aliases: []string{"ls"},
		Short:   "List the backups in a directory or a bucket",
		Long:    "List the backups in a directory or a bucket: the files that end with " + backup.Extension + ".",
		Args:    cmdline.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := printer.CheckOutput(cmd, output); err != nil {
				return err
			}
			return t.list(cmd.Context(), cmp.Or(strings.Join(given, ""), "."), output)
		},
	}
	printer.AddOutput(cmd, &output)
	return cmd
}

func (t *tool) list(ctx context.Context, address, output string) error {
	at, name, err := place.Parse(address)
	if err != nil {
		return err
	}
	if name != "" {
		return fmt.Errorf("%s is not a directory: use `rikctl backup show %s` for one backup", address, address)
	}
	items, err := at.List(ctx)
	if err != nil {
		return fmt.Errorf("listing the backups: %w", err)
	}
	if output != "" {
		if items == nil {
			items = []place.Item{}
		}
		return printer.Data(t.Streams.Out, map[string]any{"items": items}, output)
	}
	if len(items) == 0 {
		_, _ = fmt.Fprintf(t.Streams.ErrOut, "There are no backups in %s.\n", address)
		return nil
	}
	w := printers.GetNewTabWriter(t.Streams.Out)
	_, _ = fmt.Fprintln(w, "NAME\tSIZE\tAGE")
	for _, i := range items {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", printers.EscapeTerminal(i.Name), progress.Bytes(i.Bytes), duration.HumanDuration(max(time.Since(i.Modified), 0)))
	}
	return w.Flush()
}

func (t *tool) showCommand() *cobra.Command {
	var keys keyflags.Identities
	var output string
	cmd := &cobra.Command{
		Use:   "show FILE|s3://BUCKET/NAME",
		Short: "Show what a backup contains, and check it against its checksums",
		Args:  cmdline.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := printer.CheckOutput(cmd, output); err != nil {
				return err
			}
			m, err := read(cmd.Context(), given[0], &keys)
			if err != nil {
				return err
			}
			if output != "" {
				return printer.Data(t.Streams.Out, m, output)
			}
			return t.show(m)
		},
	}
	keys.Add(cmd.Flags())
	printer.AddOutput(cmd, &output)
	return cmd
}

// read reads a whole backup and checks its checksums.
func read(ctx context.Context, address string, flags *keyflags.Identities) (*backup.Manifest, error) {
	keys, err := flags.Get()
	if err != nil {
		return nil, err
	}
	at, name, err := place.Parse(address)
	if err != nil {
		return nil, err
	}
	if name == "" {
		return nil, fmt.Errorf("%s is a directory or a prefix: name the backup in it; `rikctl backup list %s` lists them", address, address)
	}
	in, err := at.Open(ctx, name)
	if err != nil {
		return nil, clierror.NotFound(err)
	}
	defer func() { _ = in.Close() }()
	m, err := backup.Read(ctx, in, keys, nil, backup.Visitor{})
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", address, err)
	}
	return m, nil
}

func (t *tool) show(m *backup.Manifest) error {
	w := printers.GetNewTabWriter(t.Streams.Out)
	bytes := int64(0)
	for _, p := range m.Parts {
		bytes += p.Bytes
	}
	for _, row := range [][2]string{
		{"ID", m.ID}, {"Cluster", m.Cluster + " (profile " + m.Profile + ")"}, {"Created", m.Created.Format(time.RFC3339)}, {"By", "rik " + m.Version},
		{"Datastore", m.Datastore}, {"Revision", fmt.Sprint(m.Revision)}, {"Term", fmt.Sprint(m.Term)},
		{"Objects", fmt.Sprint(m.Objects)}, {"Size", progress.Bytes(bytes) + " without compression"},
	} {
		_, _ = fmt.Fprintf(w, "%s:\t%s\n", row[0], printers.EscapeTerminal(row[1]))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(w, "\nRESOURCE\tOBJECTS")
	for _, name := range slices.Sorted(maps.Keys(m.Resources)) {
		_, _ = fmt.Fprintf(w, "%s\t%d\n", printers.EscapeTerminal(name), m.Resources[name])
	}
	return w.Flush()
}

func (t *tool) verifyCommand() *cobra.Command {
	var keys keyflags.Identities
	var checksums bool
	cmd := &cobra.Command{
		Use:   "verify FILE|s3://BUCKET/NAME",
		Short: "Restore a backup into a scratch datastore and compare every object",
		Long: `Restore a backup into a scratch datastore and compare every object. It needs no server
and opens no port. It runs "rik backup verify", so the program rik must be on this
machine. --checksums only compares the file with its own checksums, without rik.`,
		Args: cmdline.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			m, err := read(cmd.Context(), given[0], &keys)
			if err != nil {
				return err
			}
			if checksums {
				_, err := fmt.Fprintf(t.Streams.Out, "%s has the checksums in its manifest: %d objects at revision %d\n", given[0], m.Objects, m.Revision)
				return err
			}
			return t.verify(cmd.Context(), given[0], &keys)
		},
	}
	keys.Add(cmd.Flags())
	cmd.Flags().BoolVar(&checksums, "checksums", false, "only compare the file with the checksums in its manifest")
	return cmd
}

// verify runs the program that has the datastores.
func (t *tool) verify(ctx context.Context, address string, keys *keyflags.Identities) error {
	program, err := executable.Find("rik")
	if err != nil {
		return errors.New("the checksums of the backup are right, but it was not restored: the program rik is neither next to rikctl nor on the PATH. Install it, or use --checksums")
	}
	run := exec.CommandContext(ctx, program, append([]string{"backup", "verify", address}, keys.Args()...)...)
	run.Stdout, run.Stderr, run.Stdin = t.Streams.Out, t.Streams.ErrOut, nil
	run.Env = os.Environ()
	if err := run.Run(); err != nil {
		return fmt.Errorf("verifying %s: %w", address, err)
	}
	return nil
}
