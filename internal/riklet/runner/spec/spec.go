// Package spec translates a container of an instance into the bundle configuration of an OCI
// runtime.
//
// The package is pure. Everything that it needs to know about the node, the image and the objects
// is an argument, and Build returns the same Spec for the same Input. It defines the safe defaults.
// It creates no file, mount or cgroup.
package spec

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

var (
	// ErrNoCommand is returned if neither the image nor the container sets a command.
	ErrNoCommand = errors.New("neither the image nor the container has a command")
	// ErrUser is returned if a user is not in the /etc/passwd that was read.
	ErrUser = errors.New("no such user")
	// ErrCapability is returned for an unknown capability name.
	ErrCapability = errors.New("unknown capability")
	// ErrNotHeld is returned if a container requests a capability that the node does not have.
	ErrNotHeld = errors.New("the node does not have the capability")
	// ErrVolume is returned if a mount names a volume that the template does not have.
	ErrVolume = errors.New("no such volume")
)

// Image is the part of an image's configuration that describes how to run it.
type Image struct {
	Entrypoint []string
	Cmd        []string
	Env        []string // NAME=value
	WorkingDir string
	User       string
	// Architecture is a GOARCH value. Empty means the node's architecture.
	Architecture string
}

// Mount is a prepared source for one volume mount of the container.
type Mount struct {
	Source      string
	Destination string
	ReadOnly    bool
	// Devices allows device files and set-user-ID bits in the mount. It is only for hostPaths.
	Devices bool
}

// Device is a device file of the node.
type Device struct {
	Path         string
	Type         string // "b" or "c"
	Major, Minor int64
	Mode         fs.FileMode
	UID, GID     uint32
}

// Input is the input of Build.
type Input struct {
	Container rikv1alpha1.Container
	Image     Image
	Env       []EnvVar // resolved, in order
	Identity  User     // resolved from the image
	Rootfs    string
	Hostname  string
	// CgroupPath is relative to the roots of the cgroup hierarchies.
	CgroupPath string
	// NamespaceOf is the PID of the process whose network, IPC and UTS namespaces the container
	// joins.
	NamespaceOf int
	HostNetwork bool
	// Files of the Pod that are mounted over the image's files.
	HostsFile, HostnameFile, ResolvFile string
	SharedMemory                        string // directory behind /dev/shm
	// Devices are the devices of the node that a privileged container gets.
	Devices []Device
	Mounts  []Mount
	// PIDs bounds the number of processes. 0 means DefaultPIDs.
	PIDs int64
	// OpenFiles is the node's own hard limit. Even root in a container may not be able to exceed
	// it.
	OpenFiles uint64
	// Capabilities is the capability bounding set of the node.
	Capabilities CapabilitySet
	// GroupOOMKill is true if the kernel can kill all processes of a container, instead of one,
	// when its memory is short.
	GroupOOMKill bool
	// SwapAccounting is true if the kernel can bound memory and swap together.
	SwapAccounting bool
}

// EnvVar is one resolved variable. A Fixed value comes from a ConfigMap, a Secret or a field, and
// is used as it is. Only literal values are expanded.
type EnvVar struct {
	Name, Value string
	Fixed       bool
}

// DefaultPIDs bounds the processes and threads of a container: a fork bomb must not reach the
// node's own limit (32768 by default).
const DefaultPIDs = 4096

// DefaultPath is the PATH of a program whose image sets none.
const DefaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// The limits of open files. The soft limit suits programs that iterate over all descriptors. The
// hard limit is for programs that raise their limit.
const (
	nofileSoft = 1 << 16
	nofileHard = 1 << 19
)

// Build returns the configuration of a container.
func Build(in Input) (*specs.Spec, error) {
	env := Environment(in)
	args, err := Command(in.Container, in.Image, env)
	if err != nil {
		return nil, err
	}
	capabilities, err := Capabilities(in.Container.Security, in.Capabilities)
	if err != nil {
		return nil, err
	}
	s := &specs.Spec{
		Version:  specs.Version,
		Process:  process(in, args, env, capabilities),
		Root:     &specs.Root{Path: in.Rootfs, Readonly: security(in).ReadOnlyRootFilesystem},
		Mounts:   mounts(in),
		Linux:    linux(in),
		Hostname: "", // the Pod's UTS namespace already has its hostname
	}
	if !security(in).Privileged {
		if s.Linux.Seccomp, err = profile(s, in.Image.Architecture); err != nil {
			return nil, fmt.Errorf("building the seccomp profile: %w", err)
		}
	}
	return s, nil
}

// profile returns Docker's default seccomp profile for the image's own architecture only. The
// second system call table, for 32-bit programs, is attack surface. Compiling the filter for
// three tables instead of one also adds 20 ms or more to every start. Therefore only an image for
// 386 gets that table.
func profile(s *specs.Spec, architecture string) (*specs.LinuxSeccomp, error) {
	p, err := seccomp.GetDefaultProfile(s)
	if err != nil {
		return nil, err
	}
	own := p.Architectures[:min(len(p.Architectures), 1)] // the image's own is the first
	if architecture == "386" && slices.Contains(p.Architectures, specs.ArchX86) {
		own = append(slices.Clone(own), specs.ArchX86)
	}
	p.Architectures = own
	return p, nil
}

func security(in Input) rikv1alpha1.Security {
	if in.Container.Security == nil {
		return rikv1alpha1.Security{}
	}
	return *in.Container.Security
}

func process(in Input, args, env []string, capabilities []string) *specs.Process {
	cwd := path.Clean("/" + first(in.Container.WorkingDir, in.Image.WorkingDir))
	p := &specs.Process{
		Terminal: in.Container.TTY,
		User:     specs.User{UID: in.Identity.UID, GID: in.Identity.GID, AdditionalGids: in.Identity.Groups},
		Args:     args,
		Env:      env,
		Cwd:      cwd,
		// Neither inheritable nor ambient: a program of another user must not gain capabilities
		// that it was not given (CVE-2022-24769).
		Capabilities:    &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities},
		NoNewPrivileges: !security(in).Privileged,
		Rlimits:         []specs.POSIXRlimit{openFiles(in.OpenFiles)},
		OOMScoreAdj:     new(oomScore(in.Container.Resources)),
	}
	if in.Container.TTY {
		p.ConsoleSize = &specs.Box{Width: 80, Height: 24}
	}
	return p
}

func openFiles(most uint64) specs.POSIXRlimit {
	hard := uint64(nofileHard)
	if most > 0 {
		hard = min(hard, most)
	}
	return specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: min(nofileSoft, hard), Hard: hard}
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// Command applies the rules of Kubernetes: a command replaces the image's entrypoint and cmd, and
// args without a command replace only the cmd. It expands $(NAME).
func Command(c rikv1alpha1.Container, image Image, env []string) ([]string, error) {
	command, args := c.Command, c.Args
	if len(command) == 0 {
		command = image.Entrypoint
		if len(args) == 0 {
			args = image.Cmd
		}
	}
	argv := slices.Concat(command, args)
	if len(argv) == 0 || argv[0] == "" {
		return nil, ErrNoCommand
	}
	values := map[string]string{}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		values[name] = value
	}
	expanded := make([]string, len(argv))
	own := len(c.Command) > 0 || len(c.Args) > 0
	for i, a := range argv {
		expanded[i] = a
		if own {
			expanded[i] = Expand(a, values)
		}
	}
	return expanded, nil
}

// Environment merges the defaults, the image's variables and the container's variables. A later
// value replaces an earlier one in its place. HOME is never empty if the user's home directory is
// known. Otherwise the runtime would read the container's own /etc/passwd, which may be a pipe,
// and block.
func Environment(in Input) []string {
	list := []string{DefaultPath, "HOSTNAME=" + in.Hostname}
	if in.Container.TTY {
		list = append(list, "TERM=xterm")
	}
	if in.Identity.Home != "" {
		list = append(list, "HOME="+in.Identity.Home)
	}
	values := map[string]string{}
	set := func(name, value string) {
		if name == "HOME" && value == "" {
			value = in.Identity.Home
		}
		values[name] = value
		entry := name + "=" + value
		i := slices.IndexFunc(list, func(e string) bool { return strings.HasPrefix(e, name+"=") })
		if i >= 0 {
			list[i] = entry
			return
		}
		list = append(list, entry)
	}
	for _, e := range in.Image.Env {
		if name, value, ok := strings.Cut(e, "="); ok && name != "" {
			set(name, value)
		}
	}
	for _, e := range in.Env {
		if e.Fixed {
			set(e.Name, e.Value)
			continue
		}
		set(e.Name, Expand(e.Value, values))
	}
	return list
}

// Expand replaces $(NAME) with the variable's value. $$ becomes a literal dollar sign. A
// reference to an unknown name stays as it is.
func Expand(text string, values map[string]string) string {
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '$' || i+1 == len(text) {
			out.WriteByte(text[i])
			continue
		}
		switch text[i+1] {
		case '$':
			out.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(text[i:], ')')
			if end < 0 {
				out.WriteByte('$')
				continue
			}
			reference := text[i : i+end+1]
			if value, ok := values[reference[2:end]]; ok {
				out.WriteString(value)
			} else {
				out.WriteString(reference)
			}
			i += end
		default:
			out.WriteByte('$')
		}
	}
	return out.String()
}
