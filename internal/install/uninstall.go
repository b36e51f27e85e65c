package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"rik.dev/rik/internal/install/layout"
)

// Removal says what Uninstall removes.
type Removal struct {
	// Prefix and Root are as in Options.
	Prefix, Root string
	// Live means that Root is this machine: its services and instances stop first.
	Live bool
	// KeepData leaves the data of the cluster and of the node, and the configuration.
	KeepData bool
	// Directories have data outside of the default directories, because flags of the service name
	// them.
	Directories []string
	// StopNode stops the instances of this machine's node and removes its mounts, cgroups and
	// network. With KeepData it must keep the node's records and images. Uninstall calls it when
	// the services have stopped.
	StopNode func(ctx context.Context, keepData bool) error
	// Progress is as in Options.
	Progress func(string)
}

// Uninstall stops the services and the instances, and removes what Install wrote. It continues
// after an error, and returns all of them. It is idempotent until the record is gone, which is
// last.
func Uninstall(ctx context.Context, r Removal, host Host) error {
	record, err := ReadRecord(r.Root, r.Prefix)
	if err != nil {
		return err
	}
	o := Options{Root: r.Root, Progress: r.Progress}
	unit := layout.UnitName(record.Package)
	if r.Live {
		o.say("stopping %s", unit)
		if err := host.Stop(ctx, unit); err != nil {
			return fmt.Errorf("stopping %s: %w; nothing was removed", unit, err)
		}
		o.say("stopping the instances of this machine")
		if err := r.StopNode(ctx, r.KeepData); err != nil {
			return fmt.Errorf("stopping the instances of this machine: %w; the programs and the data are still there: mend this and run the command again", err)
		}
	}
	o.say("removing the files")
	var problems []error
	for _, name := range record.Files {
		if path.Dir(name) == layout.Under(record.Prefix).Commands && !isLink(o.on(name)) {
			continue // another program replaced the command
		}
		problems = append(problems, removeFile(o.on(name)))
	}
	if !r.KeepData {
		for _, dir := range append(slices.Clone(r.Directories), layout.DataDir, layout.StateDir, layout.RunDir, layout.NetworkDir, layout.ConfigDir, layout.ImageDir) {
			problems = append(problems, os.RemoveAll(o.on(dir)))
		}
		if record.User != "" && r.Live {
			problems = append(problems, host.RemoveUser(ctx, record.User))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	if err := removeFile(o.on(recordPath(record.Prefix))); err != nil {
		return err
	}
	o.removeEmpty(record.Directories)
	if !r.Live {
		return nil
	}
	return host.Reload(ctx)
}

func isLink(name string) bool {
	_, err := os.Readlink(name)
	return err == nil
}

func removeFile(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeEmpty removes those of the directories that are empty, from the deepest one up.
func (o *Options) removeEmpty(dirs []string) {
	slices.SortFunc(dirs, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	for _, dir := range dirs {
		// An error means that the directory has other files, or is gone.
		_ = os.Remove(o.on(dir))
	}
}
