package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"rik.dev/rik/internal/install/layout"
)

// Removal says what Uninstall removes.
type Removal struct {
	// Prefix and Root are as in Options.
	Prefix, Root string
	// KeepData leaves the data of the cluster and of the node, and the configuration.
	KeepData bool
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
	if r.Root == "/" {
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
		problems = append(problems, removeFile(o.on(name)))
	}
	if !r.KeepData {
		for _, dir := range []string{layout.DataDir, layout.StateDir, layout.RunDir, layout.NetworkDir, layout.ConfigDir} {
			problems = append(problems, os.RemoveAll(o.on(dir)))
		}
		if record.User != "" && r.Root == "/" {
			problems = append(problems, host.RemoveUser(ctx, record.User))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	if err := removeFile(o.on(recordPath(record.Prefix))); err != nil {
		return err
	}
	removeEmpty(o.Root, record)
	if r.Root != "/" {
		return nil
	}
	return host.Reload(ctx)
}

func removeFile(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeEmpty removes the directories of rik's files that are empty, from the deepest one up to
// the prefix.
func removeEmpty(root string, r Record) {
	dirs := map[string]bool{}
	for _, name := range append(r.Files, recordPath(r.Prefix)) {
		for dir := path.Dir(name); dir != r.Prefix && len(dir) > len(r.Prefix); dir = path.Dir(dir) {
			dirs[dir] = true
		}
	}
	ordered := make([]string, 0, len(dirs))
	for dir := range dirs {
		ordered = append(ordered, dir)
	}
	slices.SortFunc(ordered, func(a, b string) int { return len(b) - len(a) })
	for _, dir := range ordered {
		// An error means that the directory has other files, or is gone.
		_ = os.Remove(filepath.Join(root, dir)) //nolint:errcheck // see above
	}
}
