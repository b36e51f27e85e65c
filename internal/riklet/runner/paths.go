package runner

import (
	"path/filepath"
	"strings"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// idPrefix distinguishes the root file systems and runtime states of instances from others.
const idPrefix = "pod."

// containerID is the name of a container in the runtime and in the image store.
func containerID(uid, container string) string { return idPrefix + uid + "." + container }

// splitID splits a containerID into its parts.
func splitID(id string) (uid, container string, ok bool) {
	rest, ok := strings.CutPrefix(id, idPrefix)
	if !ok {
		return "", "", false
	}
	uid, container, ok = strings.Cut(rest, ".")
	return uid, container, ok && validUID.MatchString(uid) && validName.MatchString(container)
}

// supervisors is the cgroup of all supervisors. It cannot clash with a UID, because no UID has an
// underscore.
const supervisors = "_shims"

func (d *Driver) cgroup(uid string) string { return d.cfg.CgroupParent + "/" + uid }

// recordsFile is the file in Config.Root with the records of all instances.
const recordsFile = "pods.db"

// Names of directories in Config.Run.
const (
	runPods     = "pods"
	runRuntimes = "runtimes"
	runVMs      = "vm"
	runApp      = "app"
)

// RunNames returns the names that a driver creates in Config.Run. With them, a run directory can
// be distinguished from a directory of another program.
func RunNames() []string { return []string{runPods, runRuntimes, runVMs, runApp} }

// MachineDir returns the directory for microVMs in a Config.Run.
func MachineDir(run string) string { return filepath.Join(run, runVMs) }

// Paths in memory, below Config.Run.
func (d *Driver) runDir(uid string) string  { return filepath.Join(d.cfg.Run, runPods, uid) }
func (d *Driver) socket(uid string) string  { return filepath.Join(d.runDir(uid), "shim.sock") }
func (d *Driver) shimLog(uid string) string { return filepath.Join(d.runDir(uid), "shim.log") }
func (d *Driver) networkFile(uid string) string {
	return filepath.Join(d.runDir(uid), "network.json")
}
func (d *Driver) shared(uid string) string { return filepath.Join(d.runDir(uid), "shm") }
func (d *Driver) podFile(uid, name string) string {
	return filepath.Join(d.runDir(uid), "etc", name)
}
func (d *Driver) memoryVolume(uid, name string) string {
	return filepath.Join(d.runDir(uid), "volumes", name)
}
func (d *Driver) subPaths(uid, container string) string {
	return filepath.Join(d.runDir(uid), "subpaths", container)
}

// bundle is the directory of a container's config.json and of the files that the runtime and the
// supervisor write about the container.
func (d *Driver) bundle(uid, container string) string {
	return filepath.Join(d.runDir(uid), "c", container)
}
func (d *Driver) markFile(uid, container string) string {
	return filepath.Join(d.bundle(uid, container), "started")
}

func (d *Driver) imageFile(uid, container string) string {
	return filepath.Join(d.bundle(uid, container), "image.json")
}

// Paths on disk, below Config.Root.
func (d *Driver) rootDir(uid string) string { return filepath.Join(d.cfg.Root, "pods", uid) }
func (d *Driver) logDir(uid, container string) string {
	return filepath.Join(d.rootDir(uid), "logs", container)
}
func (d *Driver) exitFile(uid, container string) string {
	return filepath.Join(d.rootDir(uid), "exits", container+".json")
}
func (d *Driver) diskVolume(uid, name string) string {
	return filepath.Join(d.rootDir(uid), "volumes", name)
}

// runtimeRoot is the directory in which a runtime keeps the state of its containers.
func (d *Driver) runtimeRoot(runtime string) string {
	return filepath.Join(d.cfg.Run, runRuntimes, runtime)
}

// allContainers returns the init containers and the containers, in the order in which they start.
// A Function or an App has one container.
func allContainers(t rikv1alpha1.InstanceTemplate) []rikv1alpha1.Container {
	return append(append([]rikv1alpha1.Container{}, t.InitContainers...), t.Processes()...)
}
