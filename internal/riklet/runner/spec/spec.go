// Package spec translates a container of an instance into the bundle
// configuration of an OCI runtime.
//
// It is pure: what it needs to know of the node, of the image and of objects is
// an argument, and Build twice with the same Input gives the same Spec. It owns
// the safe defaults; it makes no file, mount or cgroup.
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
	// ErrNoCommand is returned when neither the image nor the container says what to run.
	ErrNoCommand = errors.New("neither the image nor the container says what to run")
	// ErrUser is returned when a user cannot be found in the /etc/passwd that was looked at.
	ErrUser = errors.New("no such user")
	// ErrCapability is returned when the name of a capability is not known.
	ErrCapability = errors.New("unknown capability")
	// ErrNotHeld is returned when a container asks for a capability that the node has not.
	ErrNotHeld = errors.New("the node itself does not hold the capability")
	// ErrVolume is returned when a mount names a volume that the template does not have.
	ErrVolume = errors.New("no such volume")
)

// Image is what an image says of how it is run.
type Image struct {
	Entrypoint []string
	Cmd        []string
	Env        []string // NAME=value
	WorkingDir string
	User       string
	// Architecture as Go names it; empty: the node's.
	Architecture string
}

// Mount is a prepared source for one volume mount of the container.
type Mount struct {
	Source      string
	Destination string
	ReadOnly    bool
	// Devices lets device files work and set-user-id bits count; only for paths
	// of the node.
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

// Input is everything that Build looks at.
type Input struct {
	Container rikv1alpha1.Container
	Image     Image
	Env       []EnvVar // resolved, in order
	Identity  User     // resolved from the image
	Rootfs    string
	Hostname  string
	// CgroupPath is relative to the hierarchies' roots.
	CgroupPath string
	// Namespaces of the Pod: the process whose network, IPC and UTS are shared.
	NamespaceOf int
	HostNetwork bool
	// Files of the Pod that are put over the image's.
	HostsFile, HostnameFile, ResolvFile string
	SharedMemory                        string // directory behind /dev/shm
	// Devices of the node that a privileged container gets.
	Devices []Device
	Mounts  []Mount
	// PIDs bounds the processes; 0 means DefaultPIDs.
	PIDs int64
	// OpenFiles is the node's own hard limit: not every root may go beyond.
	OpenFiles uint64
	// Capabilities are those that the node itself may have.
	Capabilities CapabilitySet
	// GroupOOMKill: the kernel can kill a whole container when its memory is short, instead of
	// one process.
	GroupOOMKill bool
	// SwapAccounting: the kernel can bound memory and swap together.
	SwapAccounting bool
}

// EnvVar is one variable after it was looked up. A Fixed value, of a ConfigMap,
// Secret or field, is taken as it is: only written ones are expanded.
type EnvVar struct {
	Name, Value string
	Fixed       bool
}

// DefaultPIDs bounds the processes and threads of a container: a fork bomb must
// not reach the node's own limit (32768 by default).
const DefaultPIDs = 4096

// DefaultPath is what a program finds when its image says nothing.
const DefaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// nofile bounds open files: the soft limit suits programs that walk over all
// descriptors, the hard one those that ask for more.
const (
	nofileSoft = 1 << 16
	nofileHard = 1 << 19
)

// Build makes the configuration.
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
		Hostname: "", // the namespace is the Pod's and has its name already
	}
	if !security(in).Privileged {
		if s.Linux.Seccomp, err = profile(s, in.Image.Architecture); err != nil {
			return nil, fmt.Errorf("making the seccomp profile: %w", err)
		}
	}
	return s, nil
}

// profile is Docker's default profile for the image's own architecture alone. The second system
// call table that 32-bit programs use is attack surface, and compiling the filter for three
// tables instead of one adds 20 ms or more to every start: only an image of 386 gets it.
func profile(s *specs.Spec, architecture string) (*specs.LinuxSeccomp, error) {
	p, err := seccomp.GetDefaultProfile(s)
	if err != nil {
		return nil, err
	}
	own := p.Architectures[:min(len(p.Architectures), 1)] // its own comes first
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
		// Neither inheritable nor ambient: a program of another user must not
		// gain what it was not given (CVE-2022-24769).
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

// Command applies Kubernetes' rules: a command replaces the image's entrypoint
// and its cmd, args alone replace only the cmd. $(NAME) is expanded.
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

// Environment puts the defaults, the image's and the container's variables
// together; later ones win in place of earlier ones. HOME is never empty when the
// user's is known: a runtime would else read the container's own /etc/passwd, which may
// be a pipe, and wait for it.
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

// Expand replaces $(NAME) by a known value; $$ is a literal dollar sign, and a
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
