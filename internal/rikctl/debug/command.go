package debug

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/cmdline"
)

// tool has the commands of this package. They use what the Factory gives them.
type tool struct{ *access.Factory }

// NewCommand returns the command "rikctl debug".
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	return cmdline.Group(&cobra.Command{
		Use:   "debug",
		Short: "Collect information for a bug report",
	}, t.bundleCommand())
}

func (t *tool) bundleCommand() *cobra.Command {
	var file string
	o := options{local: true}
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "Write what a bug report needs into one file, without secrets",
		Long: `Write what a bug report needs into one file: versions, nodes, conditions, events,
workloads, instances, leases, metrics and health of the server. On a node or a server, as
root, it adds the result of rik doctor, the journal of the services, and their settings.
index.txt in the file lists the content, and what could not be read.

Secrets are removed: the values of Secrets, environment variables, arguments, annotations,
credentials, tokens, keys, and passwords in URLs and logs. A removed value is also removed
everywhere else in the file. Names, addresses, images and the rest of logs stay: look at
the file before you publish it.`,
		Example: cmdline.Example(`
rikctl debug bundle
rikctl debug bundle -f report.tar.gz --since 2h`),
		Args: cmdline.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.since < time.Second {
				return cmdline.Errorf(cmd, "--since %v is too short: use a time such as 24h", o.since)
			}
			if file == "" {
				file = time.Now().Format("rik-debug-20060102-150405.tar.gz")
			}
			return t.bundle(cmd, file, o)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "the file to write (default rik-debug-DATE-TIME.tar.gz in the working directory)")
	cmd.Flags().DurationVar(&o.since, "since", 24*time.Hour, "how far back the journal is read")
	cmd.Flags().BoolVar(&o.local, "local", true, "add the doctor's report, the journal and the settings of this machine, if rik is on it")
	cmd.Flags().IntVar(&o.objects, "max-objects", 5000, "the number of objects of each type that are read")
	_ = cmd.MarkFlagFilename("file", "tar.gz")
	return cmd
}

// options are the flags of bundle.
type options struct {
	since   time.Duration
	local   bool
	objects int
}

// bundle collects and writes the file. A file that could not be written is removed.
func (t *tool) bundle(cmd *cobra.Command, path string, o options) error {
	// Other users must not read it: it has names and logs.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("writing the bundle: %w", err)
	}
	b := newBundle(time.Now())
	t.collectServer(cmd.Context(), b, o)
	if o.local {
		collectLocal(cmd.Context(), b, thisMachine(), o)
	}
	if err := b.write(f); err != nil {
		return errors.Join(fmt.Errorf("writing the bundle: %w", err), f.Close(), os.Remove(path))
	}
	info, err := f.Stat()
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return fmt.Errorf("writing the bundle: %w", err)
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		absolute = path
	}
	_, err = fmt.Fprintf(t.Streams.Out, "%s: %d files, %d KiB\n", absolute, len(b.files), (info.Size()+1023)/1024)
	if failed := b.failed(); len(failed) > 0 {
		fmt.Fprintf(t.Streams.ErrOut, "%d files could not be collected; index.txt says why. The first: %s: %s\n", len(failed), failed[0].name, failed[0].problem)
	}
	return err
}
