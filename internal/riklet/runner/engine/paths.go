package engine

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/shim"
)

// MaxUID bounds the length of an instance's UID, which is a UUID.
const MaxUID = 36

var (
	validUID  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,34}[a-z0-9])?$`)
	validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

// ValidUID reports whether a UID is safe in a path.
func ValidUID(uid string) bool { return validUID.MatchString(uid) }

// ValidName reports whether a container's or volume's name is safe in a path.
func ValidName(name string) bool { return validName.MatchString(name) }

// idPrefix distinguishes the root file systems and runtime states of instances from others.
const idPrefix = "pod."

// ContainerID returns the name of a container in the runtime and in the image store.
func ContainerID(uid, container string) string { return idPrefix + uid + "." + container }

// SplitID splits a ContainerID into its parts.
func SplitID(id string) (uid, container string, ok bool) {
	rest, ok := strings.CutPrefix(id, idPrefix)
	if !ok {
		return "", "", false
	}
	uid, container, ok = strings.Cut(rest, ".")
	return uid, container, ok && validUID.MatchString(uid) && validName.MatchString(container)
}

// Containers returns the init containers and the containers, in the order in which they start. A
// Function or an App has one container.
func Containers(t rikv1alpha1.InstanceTemplate) []rikv1alpha1.Container {
	return append(append([]rikv1alpha1.Container{}, t.InitContainers...), t.Processes()...)
}

// Instances is the directory in Paths.Run and in Paths.Root that contains a directory for each
// instance.
const Instances = "pods"

// RunDirBytes and RunDirInodes are the limits of an instance's RunDir. It contains the sockets and
// notes of the instance, the OCI specifications of its containers, and the files of the ConfigMaps
// and Secrets that it mounts. Those files exist twice during an update.
const (
	RunDirBytes  = 32 << 20
	RunDirInodes = 16 << 10
)

// Paths are the places of the files of instances. Root is on disk. Run is in memory. Engines have
// more files in RunDir and RootDir.
type Paths struct{ Root, Run string }

// RunDir is an instance's directory in memory. With an empty UID, it is the parent of all of them.
func (p Paths) RunDir(uid string) string { return filepath.Join(p.Run, Instances, uid) }

// Socket is the socket of an instance's supervisor.
func (p Paths) Socket(uid string) string { return filepath.Join(p.RunDir(uid), "shim.sock") }

// ShimLog is the log of an instance's supervisor.
func (p Paths) ShimLog(uid string) string { return filepath.Join(p.RunDir(uid), "shim.log") }

// NetworkFile contains an instance's network attachment.
func (p Paths) NetworkFile(uid string) string { return filepath.Join(p.RunDir(uid), "network.json") }

// PodFile is a file that the containers of an instance see in their /etc.
func (p Paths) PodFile(uid, name string) string { return filepath.Join(p.RunDir(uid), "etc", name) }

// Bundle is the directory of a container's config.json and of the files that the runtime and the
// supervisor write about the container.
func (p Paths) Bundle(uid, container string) string {
	return filepath.Join(p.RunDir(uid), "c", container)
}

// MarkFile contains the number of a container's last attempt.
func (p Paths) MarkFile(uid, container string) string {
	return filepath.Join(p.Bundle(uid, container), "started")
}

// ImageFile contains a container's ImageNote.
func (p Paths) ImageFile(uid, container string) string {
	return filepath.Join(p.Bundle(uid, container), "image.json")
}

// RootDir is an instance's directory on disk. With an empty UID, it is the parent of all of them.
func (p Paths) RootDir(uid string) string { return filepath.Join(p.Root, Instances, uid) }

// LogDir contains a container's log.
func (p Paths) LogDir(uid, container string) string {
	return filepath.Join(p.RootDir(uid), "logs", container)
}

// ExitFile contains the end of a container's last run.
func (p Paths) ExitFile(uid, container string) string {
	return filepath.Join(p.RootDir(uid), "exits", container+".json")
}

// LastRun reads the files that a supervisor left about a container: the last attempt that it
// began, and how that run ended. end is nil if the end is not known.
func (p Paths) LastRun(uid, name string) (attempt int, end *shim.Container) {
	if data, err := os.ReadFile(p.MarkFile(uid, name)); err == nil {
		attempt, _ = strconv.Atoi(string(data))
	}
	data, err := os.ReadFile(p.ExitFile(uid, name))
	if errors.Is(err, fs.ErrNotExist) {
		return attempt, nil
	}
	var c shim.Container
	if err != nil || json.Unmarshal(data, &c) != nil || c.Name != name {
		return attempt, nil
	}
	return max(attempt, c.Attempt), &c
}
