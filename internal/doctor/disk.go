package doctor

import (
	"fmt"
	"slices"
	"strings"

	"rik.dev/rik/internal/riklet/monitor"
)

// minFreeBytes is the space below which a directory on a disk is too small for anything: one image
// of a usual size, or the datastore's largest write-ahead log files.
const minFreeBytes = 1 << 30

// title names a directory in messages.
func (d Directory) title() string {
	what := map[DirectoryUse]string{
		UseData: "the data directory of the cluster", UseState: "the state directory of the node", UseRun: "the run directory of the node",
	}[d.Use]
	if d.Exists {
		return fmt.Sprintf("%s, %s", d.Path, what)
	}
	return fmt.Sprintf("%s, where %s (%s) will be", d.MountPoint, what, d.Path)
}

// affects says what does not work when a directory is full.
func (d Directory) affects() string {
	switch d.Use {
	case UseData:
		return "the server stops accepting changes, and may not start"
	case UseState:
		return "the node removes images, evicts instances and starts none"
	default:
		return "instances do not start"
	}
}

// perDirectory runs a check on each directory, and returns its findings, or one that all is well.
func perDirectory(m *Machine, fine string, find func(Directory) (Finding, bool)) []Finding {
	var all []Finding
	for _, d := range m.Directories {
		if d.Err != "" {
			all = append(all, Finding{Severity: Warning, Object: d.Path, Message: fmt.Sprintf("%s cannot be examined: %s.", d.Path, strings.TrimSuffix(d.Err, "."))})
			continue
		}
		if f, bad := find(d); bad {
			f.Object = d.Path
			all = append(all, f)
		}
	}
	if len(all) == 0 {
		return ok(fine)
	}
	return all
}

// usedPercent returns the share that is not free.
func usedPercent(free, total uint64) float64 {
	if total == 0 {
		return 0
	}
	return 100 * float64(total-min(free, total)) / float64(total)
}

func checkSpace(m *Machine) []Finding {
	return perDirectory(m, "The directories of rik have enough space.", func(d Directory) (Finding, bool) {
		used := usedPercent(d.FreeBytes, d.TotalBytes)
		f := Finding{
			Message: fmt.Sprintf("The file system of %s, has %s free of %s (%.0f%% used).", d.title(), bytesText(d.FreeBytes), bytesText(d.TotalBytes), used),
			Affects: d.affects(),
		}
		f.Severity = severityOfUse(used)
		if d.Use != UseRun && d.FreeBytes < minFreeBytes {
			f.Severity = Error
		}
		if f.Severity == OK {
			return f, false
		}
		f.Fix = fmt.Sprintf("du -xh --max-depth=3 %s | sort -h | tail -n 20", quote(d.MountPoint))
		if d.FileSystem == "tmpfs" {
			size := 2 * d.TotalBytes
			if d.Use != UseRun {
				size = max(size, d.TotalBytes+2*minFreeBytes)
			}
			f.Fix = fmt.Sprintf("mount -o remount,size=%d %s", size, quote(d.MountPoint))
		}
		return f, true
	})
}

// severityOfUse rates a share of a file system. A node has disk pressure above the same share.
func severityOfUse(percent float64) Severity {
	switch {
	case percent >= monitor.PressureHigh:
		return Error
	case percent >= monitor.PressureLow:
		return Warning
	}
	return OK
}

func checkInodes(m *Machine) []Finding {
	return perDirectory(m, "The directories of rik have enough inodes.", func(d Directory) (Finding, bool) {
		used := usedPercent(d.FreeInodes, d.TotalInodes)
		f := Finding{
			Severity: severityOfUse(used), Affects: d.affects(),
			Message: fmt.Sprintf("The file system of %s, has %d free inodes of %d (%.0f%% used).", d.title(), d.FreeInodes, d.TotalInodes, used),
			Fix:     fmt.Sprintf("du -x --inodes --max-depth=3 %s | sort -n | tail -n 20", quote(d.MountPoint)),
		}
		if d.FileSystem == "tmpfs" {
			f.Fix = fmt.Sprintf("mount -o remount,nr_inodes=%d %s", 2*d.TotalInodes, quote(d.MountPoint))
		}
		return f, f.Severity != OK
	})
}

// network are file systems on other machines.
var networkFileSystems = []string{"nfs", "nfs4", "cifs", "smb3", "ceph", "glusterfs", "fuse.glusterfs", "fuse.sshfs", "9p", "afs"}

func checkFileSystem(m *Machine) []Finding {
	return perDirectory(m, "The file systems of rik's directories are suitable.", func(d Directory) (Finding, bool) {
		remote := slices.Contains(networkFileSystems, d.FileSystem)
		f := Finding{Severity: Error}
		move := fmt.Sprintf("Use a directory on a disk of this machine with ext4 or xfs, with %s.", d.Flag)
		switch {
		case d.Use == UseState && d.Upper.Failed():
			f.Message = fmt.Sprintf("%s, is on %s, which cannot hold the files that containers write: %s. %s", d.title(), d.FileSystem, strings.TrimSuffix(d.Upper.Err, "."), move)
			f.Affects = "the node does not start"
		case d.Use == UseData && remote:
			f.Message = fmt.Sprintf("%s, is on %s, a network file system. %s", d.title(), d.FileSystem, move)
			f.Affects = "locks and durable writes of the datastore: it may lose data"
		case d.Use == UseState && remote:
			f.Message = fmt.Sprintf("%s, is on %s, a network file system. %s", d.title(), d.FileSystem, move)
			f.Affects = "images and containers"
		case d.Use != UseRun && d.FileSystem == "tmpfs":
			f.Severity = Warning
			f.Message = fmt.Sprintf("%s, is in memory (tmpfs). %s", d.title(), move)
			f.Affects = "its content is lost when the machine restarts"
		case d.Use == UseData && d.FileSystem == "overlay":
			f.Severity = Warning
			f.Message = fmt.Sprintf("%s, is on overlay, as in a container without a volume. %s", d.title(), move)
			f.Affects = "its content is lost with the container"
		default:
			return f, false
		}
		return f, true
	})
}

func checkMountOptions(m *Machine) []Finding {
	return perDirectory(m, "The mount options of rik's directories are suitable.", func(d Directory) (Finding, bool) {
		has := func(option string) bool { return slices.Contains(d.Options, option) }
		var options, affects []string
		severity := Warning
		add := func(option string, s Severity, what string) {
			if has(option) {
				options, affects = append(options, option), append(affects, what)
				if s.rank() < severity.rank() {
					severity = s
				}
			}
		}
		add("ro", Error, d.affects())
		if d.Use == UseState {
			add("noexec", Error, "Apps do not start")
			add("nodev", Warning, "Functions with Firecracker do not start")
			add("nosuid", Warning, "programs such as sudo do not work in Apps")
		}
		if len(options) == 0 {
			return Finding{}, false
		}
		opposite := map[string]string{"ro": "rw", "noexec": "exec", "nodev": "dev", "nosuid": "suid"}
		var want []string
		for _, o := range options {
			want = append(want, opposite[o])
		}
		return Finding{
			Severity: severity, Affects: strings.Join(affects, "; "),
			Message: fmt.Sprintf("The file system of %s, is mounted with %s. Remove the option in /etc/fstab too, if it is there.", d.title(), strings.Join(options, ", ")),
			Fix:     fmt.Sprintf("mount -o remount,%s %s", strings.Join(want, ","), quote(d.MountPoint)),
		}, true
	})
}
