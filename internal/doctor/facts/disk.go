package facts

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/doctor"
	"rik.dev/rik/internal/riklet/mounts"
)

func (g *gatherer) directories(root bool) []doctor.Directory {
	var all []doctor.Directory
	for _, d := range []doctor.Directory{
		{Path: g.cfg.DataDir, Flag: "--data-dir", Use: doctor.UseData},
		{Path: g.cfg.StateDir, Flag: "--state-dir", Use: doctor.UseState},
		{Path: g.cfg.RunDir, Flag: "--run-dir", Use: doctor.UseRun},
	} {
		if d.Path == "" || g.cfg.NoNode && d.Use != doctor.UseData {
			continue
		}
		if err := examine(&d); err != nil {
			d.Err = err.Error()
		} else if d.Use == doctor.UseState && root {
			d.Upper = upper(nearest(d.Path))
		}
		all = append(all, d)
	}
	return all
}

// nearest returns a directory, or its nearest parent that exists.
func nearest(dir string) string {
	for dir != "/" && dir != "." {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// examine fills in what is known about the file system of a directory.
func examine(d *doctor.Directory) error {
	path, err := filepath.Abs(d.Path)
	if err != nil {
		return err
	}
	existing := nearest(path)
	d.Exists = existing == filepath.Clean(path)
	if existing, err = filepath.EvalSymlinks(existing); err != nil {
		return err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(existing, &st); err != nil {
		return &fs.PathError{Op: "statfs", Path: existing, Err: err}
	}
	block := uint64(st.Bsize)
	d.FreeBytes, d.TotalBytes, d.FreeInodes, d.TotalInodes = st.Bavail*block, st.Blocks*block, st.Ffree, st.Files
	// Space that only root may use counts neither as free nor as total.
	d.TotalBytes -= min(d.TotalBytes, (st.Bfree-st.Bavail)*block)
	m, err := mounts.Of(existing)
	if err != nil {
		return err
	}
	d.MountPoint, d.FileSystem = m.Mountpoint, m.FSType
	d.Options = strings.Split(m.Options, ",")
	for option := range strings.SplitSeq(m.VFSOptions, ",") {
		if option == "ro" {
			d.Options = append(d.Options, option)
		}
	}
	return nil
}

// upper tries a directory for the files that containers write.
func upper(dir string) doctor.Probe {
	err := mounts.ProbeUpper(dir)
	if err != nil && !errors.As(err, new(*mounts.UnfitError)) {
		return doctor.Probe{} // a full or read-only disk: other checks report that
	}
	return probe(err)
}
