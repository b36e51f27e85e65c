package ociimage

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// BusyboxPath is the path of Debian's busybox-static.
const BusyboxPath = "/bin/busybox"

// BusyboxSpec describes a root file system with this machine's static busybox: /bin/sh and a
// link for each applet, the usual users in /etc/passwd, and the usual directories.
func BusyboxSpec() (Spec, error) {
	if err := requireStatic(BusyboxPath); err != nil {
		return Spec{}, err
	}
	out, err := exec.Command(BusyboxPath, "--list").Output()
	if err != nil {
		return Spec{}, fmt.Errorf("listing the applets of %s: %w", BusyboxPath, err)
	}
	files := map[string]File{
		"bin/busybox": {Source: BusyboxPath},
		"etc/passwd":  {Content: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")},
		"etc/group":   {Content: []byte("root:x:0:\nnogroup:x:65534:\n")},
		"root":        {Dir: true, Mode: 0o700},
		"tmp":         {Dir: true, Mode: 0o777 | os.ModeSticky},
	}
	for _, dir := range []string{"dev", "proc", "sys", "run", "var", "home"} {
		files[dir] = File{Dir: true}
	}
	for applet := range strings.FieldsSeq(string(bytes.TrimSpace(out))) {
		if name := filepath.Join("bin", filepath.Base(applet)); name != "bin/busybox" {
			files[name] = File{Link: "busybox"}
		}
	}
	return Spec{
		Files: files,
		Env:   []string{"PATH=/bin:/sbin:/usr/bin:/usr/sbin"},
		Cmd:   []string{"/bin/sh"},
	}, nil
}

// ProgramSpec describes an image that runs a static program as its entrypoint and without
// privileges. With shell it also has busybox.
func ProgramSpec(program string, shell bool) (Spec, error) {
	spec := Spec{Files: map[string]File{}}
	if shell {
		var err error
		if spec, err = BusyboxSpec(); err != nil {
			return Spec{}, err
		}
	}
	name := filepath.Base(program)
	spec.Files[name] = File{Source: program, Mode: 0o755}
	spec.Entrypoint, spec.Cmd, spec.User = []string{"/" + name}, nil, "65534:65534"
	return spec, nil
}

// Busybox writes the image of BusyboxSpec into the OCI layout at dir. It returns the reference
// for rik ("oci:/dir:latest").
func Busybox(dir string) (string, error) {
	spec, err := BusyboxSpec()
	if err != nil {
		return "", err
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if _, err := Write(abs, "latest", spec); err != nil {
		return "", err
	}
	return "oci:" + abs + ":latest", nil
}

// requireStatic refuses a busybox that needs a dynamic loader, because the image would lack it.
// Its containers would fail with "no such file or directory".
func requireStatic(file string) error {
	f, err := elf.Open(file)
	if err != nil {
		return fmt.Errorf("reading busybox (apt-get install busybox-static): %w", err)
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is linked dynamically: apt-get install busybox-static", file)
		}
	}
	return nil
}
