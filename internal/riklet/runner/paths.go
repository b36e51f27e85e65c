package runner

import (
	"path/filepath"
	"strings"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// idPrefix marks the roots and runtime states of Pods among others'.
const idPrefix = "pod."

// containerID is the name of a container for the runtime and the image store.
func containerID(uid, container string) string { return idPrefix + uid + "." + container }

// splitID takes a containerID apart.
func splitID(id string) (uid, container string, ok bool) {
	rest, ok := strings.CutPrefix(id, idPrefix)
	if !ok {
		return "", "", false
	}
	uid, container, ok = strings.Cut(rest, ".")
	return uid, container, ok && validUID.MatchString(uid) && validName.MatchString(container)
}

// supervisors is the cgroup of all supervisors; no UID has an underscore.
const supervisors = "_shims"

func (d *Driver) cgroup(uid string) string { return d.cfg.CgroupParent + "/" + uid }

// recordsFile has the records of all instances, in Config.Root.
const recordsFile = "pods.db"

// Names in Config.Run.
const (
	runPods     = "pods"
	runRuntimes = "runtimes"
	runVMs      = "vm"
	runApp      = "app"
)

// RunNames are the names that a driver makes in Config.Run, by which a directory can be told
// from somebody else's.
func RunNames() []string { return []string{runPods, runRuntimes, runVMs, runApp} }

// MachineDir is where the directories of microVMs are in a Config.Run.
func MachineDir(run string) string { return filepath.Join(run, runVMs) }

// In memory.
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

// bundle is the directory of a container's config.json and of what the runtime
// and the supervisor note about it.
func (d *Driver) bundle(uid, container string) string {
	return filepath.Join(d.runDir(uid), "c", container)
}
func (d *Driver) markFile(uid, container string) string {
	return filepath.Join(d.bundle(uid, container), "started")
}

func (d *Driver) imageFile(uid, container string) string {
	return filepath.Join(d.bundle(uid, container), "image.json")
}

// On disk.
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

// runtimeRoot is where a runtime keeps the state of its containers.
func (d *Driver) runtimeRoot(runtime string) string {
	return filepath.Join(d.cfg.Run, runRuntimes, runtime)
}

// allContainers are the init containers and the containers, in the order they
// start; a Function or an App has one.
func allContainers(t rikv1alpha1.InstanceTemplate) []rikv1alpha1.Container {
	return append(append([]rikv1alpha1.Container{}, t.InitContainers...), t.Processes()...)
}
