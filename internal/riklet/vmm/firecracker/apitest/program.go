package apitest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The program names that Main recognizes.
const (
	vmmName    = "firecracker"
	jailerName = "jailer"
)

// Main turns a test's program into Firecracker or its jailer, if it has that name, and then does
// not return. TestMain calls it first.
func Main() {
	var err error
	switch filepath.Base(os.Args[0]) {
	case jailerName:
		err = jail(os.Args[1:])
	case vmmName:
		err = vmm(os.Args[1:], versionBeside(os.Args[0]))
	default:
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// versionFile is the file next to the programs with the version that they report.
const versionFile = "version"

// Programs creates a directory with the two programs, for FIRECRACKER_LOCATION.
func Programs(tb testing.TB) string { return ProgramsOf(tb, Version) }

// ProgramsOf does the same for a given version.
func ProgramsOf(tb testing.TB, version string) string {
	tb.Helper()
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	dir := tb.TempDir()
	for _, name := range []string{vmmName, jailerName} {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			tb.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, versionFile), []byte(version), 0o600); err != nil {
		tb.Fatal(err)
	}
	return dir
}

// versionBeside reads the version file next to a program.
func versionBeside(program string) string {
	version, err := os.ReadFile(filepath.Join(filepath.Dir(program), versionFile))
	if err != nil {
		return Version
	}
	return string(version)
}

func vmm(arguments []string, is string) error {
	f := flag.NewFlagSet(vmmName, flag.ContinueOnError)
	level := f.String("level", "Info", "")
	version := f.Bool("version", false, "")
	id := f.String("id", "anonymous-instance", "")
	socket := f.String("api-sock", "/run/firecracker.socket", "")
	if err := f.Parse(arguments); err != nil {
		return err
	}
	if *version {
		fmt.Printf("Firecracker v%s\n", is)
		return nil
	}
	if *level == "Info" {
		fmt.Println("[everything that this stand-in does is logged here]")
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "unix", *socket)
	if err != nil {
		return err
	}
	fmt.Println("[no guest is booted by this stand-in]")
	server := &http.Server{Handler: NewServer(*id, is), ReadHeaderTimeout: time.Minute}
	return server.Serve(l)
}

var jailID = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

// jailOptions are the jailer's options, from Firecracker's docs/jailer.md.
type jailOptions struct {
	id, execFile, base, cgroups, parent string
	uid, gid                            int
	rest                                []string
}

func parseJail(arguments []string) (jailOptions, error) {
	var o jailOptions
	f := flag.NewFlagSet(jailerName, flag.ContinueOnError)
	f.StringVar(&o.id, "id", "", "")
	f.StringVar(&o.execFile, "exec-file", "", "")
	f.StringVar(&o.base, "chroot-base-dir", "/srv/jailer", "")
	f.StringVar(&o.cgroups, "cgroup-version", "1", "")
	f.StringVar(&o.parent, "parent-cgroup", vmmName, "")
	f.IntVar(&o.uid, "uid", -1, "")
	f.IntVar(&o.gid, "gid", -1, "")
	for i, a := range arguments {
		if a == "--" {
			arguments, o.rest = arguments[:i], arguments[i+1:]
			break
		}
		if strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") {
			return o, fmt.Errorf("the jailer has no option %q", a)
		}
	}
	if err := f.Parse(arguments); err != nil {
		return o, err
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("the jailer takes no argument %q", f.Arg(0))
	case !jailID.MatchString(o.id):
		return o, fmt.Errorf("the ID %q is not 1 to 64 alphanumeric characters and hyphens", o.id)
	case !strings.Contains(filepath.Base(o.execFile), vmmName):
		return o, fmt.Errorf("the name of %q does not have %q in it", o.execFile, vmmName)
	case o.uid < 0 || o.gid < 0:
		return o, errors.New("--uid and --gid are needed")
	case o.parent == "" || !filepath.IsLocal(o.parent):
		return o, fmt.Errorf("the parent cgroup %q is not a path below the root", o.parent)
	case o.cgroups != "1" && o.cgroups != "2":
		return o, fmt.Errorf("the cgroup version %q is neither 1 nor 2", o.cgroups)
	}
	return o, nil
}

// jail does the part of the jailer's work that matters for a driver: the copy of the program,
// the root, the devices, the user. Then it continues as the VMM itself. It does not execute the
// copy, because that would need its libraries in the jail.
func jail(arguments []string) error {
	o, err := parseJail(arguments)
	if err != nil {
		return err
	}
	version := versionBeside(o.execFile)
	root := filepath.Join(o.base, filepath.Base(o.execFile), o.id, "root")
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	if err := copyProgram(o.execFile, filepath.Join(root, filepath.Base(o.execFile))); err != nil {
		return fmt.Errorf("copying the program into the jail: %w", err)
	}
	if err := syscall.Chroot(root); err != nil {
		return fmt.Errorf("entering the jail: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := makeDevices(o); err != nil {
		return err
	}
	if err := errors.Join(os.Chown("/", o.uid, o.gid), syscall.Setgroups(nil), syscall.Setgid(o.gid), syscall.Setuid(o.uid)); err != nil {
		return fmt.Errorf("giving up root: %w", err)
	}
	return vmm(append([]string{"--id=" + o.id}, o.rest...), version)
}

func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// makeDevices creates /dev/kvm and /dev/net/tun. Like the jailer, it fails if they exist.
func makeDevices(o jailOptions) error {
	for path, number := range map[string]int{"/dev/kvm": 10<<8 | 232, "/dev/net/tun": 10<<8 | 200} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := syscall.Mknod(path, syscall.S_IFCHR|0o600, number); err != nil {
			return fmt.Errorf("creating %s: %w", path, err)
		}
		if err := os.Chown(path, o.uid, o.gid); err != nil {
			return err
		}
	}
	return nil
}
