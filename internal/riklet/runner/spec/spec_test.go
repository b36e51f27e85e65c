package spec

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/testkit/golden"
)

// input is an ordinary container on a fictitious node.
func input(change func(*Input)) Input {
	in := Input{
		Container: rikv1alpha1.Container{Name: "main", Image: "busybox"},
		Image:     Image{Entrypoint: []string{"/entry"}, Cmd: []string{"serve"}, Env: []string{"PATH=/bin", "LANG=C"}, WorkingDir: "/srv"},
		Rootfs:    "/images/u/rootfs", Hostname: "web", CgroupPath: "/rik/u/main", NamespaceOf: 77,
		HostsFile: "/run/u/etc/hosts", HostnameFile: "/run/u/etc/hostname", ResolvFile: "/run/u/etc/resolv.conf", SharedMemory: "/run/u/shm",
		SwapAccounting: true, OpenFiles: 1 << 20, Capabilities: EveryCapability,
	}
	change(&in)
	return in
}

func TestBuildGolden(t *testing.T) {
	t.Parallel()
	limits := rikv1alpha1.ResourceList{rikv1alpha1.ResourceCPU: resource.MustParse("500m"), rikv1alpha1.ResourceMemory: resource.MustParse("64Mi")}
	tests := map[string]func(*Input){
		"default": func(*Input) {},
		"limits": func(in *Input) {
			in.Container.Resources = rikv1alpha1.Resources{Limits: limits, Requests: rikv1alpha1.ResourceList{rikv1alpha1.ResourceCPU: resource.MustParse("100m")}}
			in.PIDs, in.OpenFiles = 100, 1000
		},
		"host-network-tty-user": func(in *Input) {
			in.HostNetwork, in.Container.TTY = true, true
			in.Identity = User{UID: 1000, GID: 100, Groups: []uint32{100, 27}}
			in.Container.WorkingDir = "work/../here"
		},
		"volumes": func(in *Input) {
			in.Container.Security = &rikv1alpha1.Security{ReadOnlyRootFilesystem: true, DropCapabilities: []string{"ALL"}, AddCapabilities: []string{"NET_BIND_SERVICE"}}
			in.Mounts = []Mount{
				{Source: "/v/b", Destination: "/a/b/c"}, {Source: "/v/a", Destination: "/a", ReadOnly: true},
				{Source: "/dev/thing", Destination: "/dev/thing", Devices: true}, {Source: "/v/hosts", Destination: "/etc/hosts"},
			}
		},
		"privileged": func(in *Input) { in.Container.Security = &rikv1alpha1.Security{Privileged: true} },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := Build(input(change))
			if err != nil {
				t.Fatal(err)
			}
			// The profile comes from a library and differs between architectures.
			if got := s.Linux.Seccomp != nil; got != (name != "privileged") {
				t.Errorf("has a seccomp profile: %v", got)
			}
			if p := s.Linux.Seccomp; p != nil && (p.DefaultAction != specs.ActErrno || len(p.Architectures) != 1) {
				t.Errorf("profile: default action %s for %v", p.DefaultAction, p.Architectures)
			}
			s.Linux.Seccomp = nil
			compareSpec(t, name, s)
		})
	}
}

func compareSpec(t *testing.T, name string, s *specs.Spec) {
	t.Helper()
	got, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, name+".json", append(got, '\n'))
}

func TestCommand(t *testing.T) {
	t.Parallel()
	image := Image{Entrypoint: []string{"/entry"}, Cmd: []string{"$(X)"}}
	tests := map[string]struct {
		image         Image
		command, args []string
		want          []string
	}{
		"the image's, as it is":       {image, nil, nil, []string{"/entry", "$(X)"}},
		"a command replaces both":     {image, []string{"/mine"}, nil, []string{"/mine"}},
		"args replace cmd":            {image, nil, []string{"-v"}, []string{"/entry", "-v"}},
		"both":                        {image, []string{"/mine"}, []string{"$(X)", "$(Y)", "$$(X)"}, []string{"/mine", "1", "$(Y)", "$(X)"}},
		"nothing to run":              {Image{}, nil, nil, nil},
		"args without an entry point": {Image{}, nil, []string{"/bin/true"}, []string{"/bin/true"}},
		"an empty command is nothing": {Image{}, []string{""}, nil, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Command(rikv1alpha1.Container{Command: tc.command, Args: tc.args}, tc.image, []string{"X=1"})
			if (tc.want == nil) != errors.Is(err, ErrNoCommand) {
				t.Errorf("Command() error = %v", err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("Command() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	in := input(func(in *Input) {
		in.Image.Env = []string{"PATH=/opt/bin", "BASE=image", "broken"}
		in.Env = []EnvVar{
			{Name: "A", Value: "a"}, {Name: "B", Value: "$(A)-$(BASE)-$(LATER)"}, {Name: "LATER", Value: "x"},
			{Name: "SECRET", Value: "$(A)", Fixed: true}, {Name: "BASE", Value: "$(SECRET)$$(A)"},
		}
	})
	want := []string{"PATH=/opt/bin", "HOSTNAME=web", "BASE=$(A)$(A)", "A=a", "B=a-image-$(LATER)", "LATER=x", "SECRET=$(A)"}
	if diff := cmp.Diff(want, Environment(in)); diff != "" {
		t.Errorf("Environment() (-want +got):\n%s", diff)
	}
}

func TestEnvironmentHasAHome(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		image, own []string
		home       string // of the user
		want       string // "": no HOME
	}{
		"the user's":                  {nil, nil, "/srv", "/srv"},
		"the image's":                 {[]string{"HOME=/image"}, nil, "/srv", "/image"},
		"the container's":             {[]string{"HOME=/image"}, []string{"/own"}, "/srv", "/own"},
		"an empty one is none":        {[]string{"HOME="}, []string{""}, "/srv", "/srv"},
		"of a user that is not known": {nil, nil, "", ""},
	} {
		in := input(func(in *Input) {
			in.Image.Env, in.Identity.Home = tc.image, tc.home
			for _, value := range tc.own {
				in.Env = append(in.Env, EnvVar{Name: "HOME", Value: value})
			}
		})
		got := ""
		for _, e := range Environment(in) {
			if value, ok := strings.CutPrefix(e, "HOME="); ok {
				got += value
			}
		}
		if got != tc.want {
			t.Errorf("%s: HOME = %q, want %q", name, got, tc.want)
		}
	}
}

func TestExpand(t *testing.T) {
	t.Parallel()
	values := map[string]string{"A": "1", "": "empty"}
	for text, want := range map[string]string{
		"": "", "$": "$", "$$": "$", "$A": "$A", "$(A)": "1", "$(A": "$(A", "$$(A)": "$(A)", "$$$(A)": "$1", "$(B)$(A)": "$(B)1", "x$(A)y": "x1y",
	} {
		if got := Expand(text, values); got != want {
			t.Errorf("Expand(%q) = %q, want %q", text, got, want)
		}
	}
}

func FuzzExpand(f *testing.F) {
	f.Add("$(A)$$$(")
	f.Fuzz(func(t *testing.T, text string) {
		if !strings.Contains(text, "$") && Expand(text, nil) != text {
			t.Errorf("Expand(%q) = %q", text, Expand(text, nil))
		}
	})
}

func TestCapabilities(t *testing.T) {
	t.Parallel()
	// CAP_AUDIT_WRITE is 29, CAP_SYSLOG is 34.
	const less = EveryCapability &^ (1<<29 | 1<<34)
	for name, tc := range map[string]struct {
		security *rikv1alpha1.Security
		want     int
		err      error
	}{
		"default":    {nil, len(defaultCapabilities) - 1, nil},
		"privileged": {&rikv1alpha1.Security{Privileged: true}, len(allCapabilities) - 2, nil},
		"add all":    {&rikv1alpha1.Security{AddCapabilities: []string{"ALL"}}, len(allCapabilities) - 2, nil},
		"add held":   {&rikv1alpha1.Security{AddCapabilities: []string{"BPF"}}, len(defaultCapabilities), nil},
		"add one":    {&rikv1alpha1.Security{AddCapabilities: []string{"syslog"}}, 0, ErrNotHeld},
	} {
		got, err := Capabilities(tc.security, less)
		if len(got) != tc.want || !errors.Is(err, tc.err) || err != nil && !strings.Contains(err.Error(), "CAP_SYSLOG") {
			t.Errorf("%s on a node with less: Capabilities() = %v, %v; want %d, %v", name, got, err, tc.want, tc.err)
		}
	}
	tests := map[string]struct {
		security *rikv1alpha1.Security
		want     int
		err      error
	}{
		"default":      {nil, len(defaultCapabilities), nil},
		"drop all":     {&rikv1alpha1.Security{DropCapabilities: []string{"all"}}, 0, nil},
		"drop one":     {&rikv1alpha1.Security{DropCapabilities: []string{"MKNOD"}}, len(defaultCapabilities) - 1, nil},
		"drop none":    {&rikv1alpha1.Security{DropCapabilities: []string{"NET_RAW"}}, len(defaultCapabilities), nil}, // many users drop it by habit
		"add raw":      {&rikv1alpha1.Security{AddCapabilities: []string{"NET_RAW"}}, len(defaultCapabilities) + 1, nil},
		"add twice":    {&rikv1alpha1.Security{AddCapabilities: []string{"CAP_SYS_TIME", "sys_time", "KILL"}}, len(defaultCapabilities) + 1, nil},
		"privileged":   {&rikv1alpha1.Security{Privileged: true}, len(allCapabilities), nil},
		"unknown add":  {&rikv1alpha1.Security{AddCapabilities: []string{"FLY"}}, 0, ErrCapability},
		"unknown drop": {&rikv1alpha1.Security{DropCapabilities: []string{"../x"}}, 0, ErrCapability},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Capabilities(tc.security, EveryCapability)
			if len(got) != tc.want || !errors.Is(err, tc.err) {
				t.Errorf("Capabilities() = %v, %v; want %d, %v", got, err, tc.want, tc.err)
			}
		})
	}
}

func TestCapabilitiesHaveTheKernelsNumbers(t *testing.T) {
	t.Parallel()
	if got := len(allCapabilities); got != unix.CAP_LAST_CAP+1 {
		t.Errorf("%d capabilities, want %d", got, unix.CAP_LAST_CAP+1)
	}
	for number, want := range map[int]string{
		unix.CAP_CHOWN: "CAP_CHOWN", unix.CAP_SETPCAP: "CAP_SETPCAP", unix.CAP_NET_RAW: "CAP_NET_RAW", unix.CAP_SYS_ADMIN: "CAP_SYS_ADMIN",
		unix.CAP_SYS_RESOURCE: "CAP_SYS_RESOURCE", unix.CAP_AUDIT_WRITE: "CAP_AUDIT_WRITE", unix.CAP_SYSLOG: "CAP_SYSLOG",
		unix.CAP_CHECKPOINT_RESTORE: "CAP_CHECKPOINT_RESTORE",
	} {
		if got := allCapabilities[number]; got != want {
			t.Errorf("capability %d is %s, want %s", number, got, want)
		}
	}
}

func TestLookUp(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, text := range map[string]string{
		"etc/passwd": "root:x:0:0::/root:/bin/sh\napp:x:1000:100::/srv:/bin/sh\nhomeless:x:1001:100:::/bin/sh\n", "etc/group": "root:x:0:\nusers:x:100:\nextra:x:200:app\n",
	} {
		if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tests := map[string]struct {
		want User
		err  error
	}{
		"":            {User{Home: "/root"}, nil},
		"root":        {User{Home: "/root"}, nil},
		"app":         {User{UID: 1000, GID: 100, Groups: []uint32{200}, Home: "/srv"}, nil},
		"1000":        {User{UID: 1000, GID: 100, Groups: []uint32{200}, Home: "/srv"}, nil},
		"app:extra":   {User{UID: 1000, GID: 200, Home: "/srv"}, nil},
		"4711:4712":   {User{UID: 4711, GID: 4712, Home: "/"}, nil},
		"homeless":    {User{UID: 1001, GID: 100, Home: "/"}, nil},
		"nobody-here": {User{}, ErrUser},
		"app:nogroup": {User{}, ErrUser},
		"-1":          {User{}, ErrUser},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := LookUp(root, name)
			if !errors.Is(err, tc.err) {
				t.Fatalf("LookUp(%q) = %v, want %v", name, err, tc.err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("LookUp(%q) (-want +got):\n%s", name, diff)
			}
		})
	}
}

// An image's user database may be a link to the node's: the lookup must not read that. It may
// also be a pipe: the lookup must not block.
func TestLookUpStaysInTheImage(t *testing.T) {
	t.Parallel()
	outside := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(outside, []byte("spy:x:4242:4242::/:/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "etc", "group"), 0o755); err != nil { // a directory
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(root, "etc", "passwd")); err != nil {
		t.Fatal(err)
	}
	if u, err := LookUp(root, "spy"); !errors.Is(err, ErrUser) {
		t.Errorf("LookUp() = %+v, %v; want %v", u, err, ErrUser)
	}
	if u, err := LookUp(root, "1:2"); err != nil || u.UID != 1 || u.GID != 2 {
		t.Errorf("LookUp() = %+v, %v", u, err)
	}
}

// A file that is not regular is not read. The error names it if a lookup needs it.
func TestLookUpReadsPlainFilesOnly(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"passwd", "group"} {
		if err := syscall.Mkfifo(filepath.Join(root, "etc", name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"", "0", "7:8"} {
		if u, err := LookUp(root, name); err != nil || u.Home != "/" {
			t.Errorf("LookUp(%q) = %+v, %v", name, u, err)
		}
	}
	for name, file := range map[string]string{"app": "/etc/passwd", "7:users": "/etc/group"} {
		if u, err := LookUp(root, name); !errors.Is(err, ErrUser) || !strings.Contains(err.Error(), file+" is not a regular file") {
			t.Errorf("LookUp(%q) = %+v, %v; want %v that names %s", name, u, err, ErrUser, file)
		}
	}
}

func TestHostname(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ wanted, instance, want string }{
		{"", "web-1", "web-1"}, {"db", "web-1", "db"}, {"", "a.b.c", "a"}, {"", strings.Repeat("x", 100), strings.Repeat("x", 63)}, {"", "", "instance"},
	} {
		if got := Hostname(tc.wanted, tc.instance); got != tc.want {
			t.Errorf("Hostname(%q, %q) = %q, want %q", tc.wanted, tc.instance, got, tc.want)
		}
	}
}

func TestHosts(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{"": "127.0.1.1\tweb\n", "10.0.0.7": "10.0.0.7\tweb\n"} {
		if got := Hosts("web", address); !strings.HasSuffix(got, want) || !strings.Contains(got, "127.0.0.1\tlocalhost\n") {
			t.Errorf("Hosts() = %q", got)
		}
	}
}

// A volume at /etc still shows the files that the node mounts there. Volumes can be inside each
// other in any order of declaration.
func TestMountsAreMadeFromTheOutsideIn(t *testing.T) {
	t.Parallel()
	has := t.TempDir()
	if err := os.WriteFile(filepath.Join(has, "hosts"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		volumes, want []Mount
	}{
		"at /etc":                            {[]Mount{{Source: "/v", Destination: "/etc"}}, []Mount{{Destination: "/etc"}, {Destination: "/dev/shm"}, {Destination: "/etc/hosts"}, {Destination: "/etc/hostname"}, {Destination: "/etc/resolv.conf"}}},
		"at a file":                          {[]Mount{{Source: "/v", Destination: "/etc/hosts"}}, []Mount{{Destination: "/dev/shm"}, {Destination: "/etc/hostname"}, {Destination: "/etc/resolv.conf"}, {Destination: "/etc/hosts"}}},
		"read-only at /etc, with hosts only": {[]Mount{{Source: has, Destination: "/etc", ReadOnly: true}}, []Mount{{Destination: "/etc"}, {Destination: "/dev/shm"}, {Destination: "/etc/hosts"}}},
		"in each other": {[]Mount{{Source: "/v", Destination: "/aaaa/b"}, {Source: "/v", Destination: "/aaaa"}, {Source: "/v", Destination: "/z/z/z"}},
			[]Mount{{Destination: "/aaaa"}, {Destination: "/dev/shm"}, {Destination: "/etc/hosts"}, {Destination: "/etc/hostname"}, {Destination: "/etc/resolv.conf"}, {Destination: "/aaaa/b"}, {Destination: "/z/z/z"}}},
	} {
		var got []Mount
		for _, m := range mounts(input(func(in *Input) { in.Mounts = tc.volumes })) {
			if m.Type == "bind" {
				got = append(got, Mount{Destination: m.Destination})
			}
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", name, diff)
		}
	}
}

// Only an image for 386 gets the system calls of 32-bit programs.
func TestProgramsOf386(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("the processor is no amd64")
	}
	for architecture, want := range map[string][]specs.Arch{"": {specs.ArchX86_64}, "amd64": {specs.ArchX86_64}, "386": {specs.ArchX86_64, specs.ArchX86}} {
		s, err := Build(input(func(in *Input) { in.Image.Architecture = architecture }))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, s.Linux.Seccomp.Architectures); diff != "" {
			t.Errorf("%q: (-want +got):\n%s", architecture, diff)
		}
	}
}

func TestContainersAreKilledAsOne(t *testing.T) {
	t.Parallel()
	for _, able := range []bool{false, true} {
		s, err := Build(input(func(in *Input) { in.GroupOOMKill = able }))
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Linux.Resources.Unified["memory.oom.group"] == "1"; got != able {
			t.Errorf("memory.oom.group is set: %t, want %t", got, able)
		}
	}
}
