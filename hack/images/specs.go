package main

import (
	"io/fs"
	"os"
	"path/filepath"

	"rik.dev/rik/internal/ociimage"
)

// user runs the server, which needs no privilege. It has the number that other images without a
// shell use.
const user = 65532

// The directories that several containers share have the same owner in both images. A container
// engine gives a new volume the owner that its directory has in the image of the first container.
const (
	tokenDir = "var/lib/rik/token"
	dataDir  = "var/lib/rik/data"
)

// lib is the directory of the programs. A program finds the others in its own directory.
const lib = "usr/lib/rik/"

// base returns the files of every image: users, licenses and directories.
func base(license string) (map[string]ociimage.File, error) {
	text, err := os.ReadFile(license)
	if err != nil {
		return nil, err
	}
	return map[string]ociimage.File{
		"etc/passwd":                {Content: []byte("root:x:0:0:root:/root:/sbin/nologin\nrik:x:65532:65532:rik:/var/lib/rik:/sbin/nologin\n")},
		"etc/group":                 {Content: []byte("root:x:0:\nrik:x:65532:\n")},
		"etc/os-release":            {Content: []byte("ID=rik\nNAME=rik\nPRETTY_NAME=\"a container of rik\"\n")},
		"root":                      {Dir: true, Mode: 0o700},
		"run":                       {Dir: true},
		"tmp":                       {Dir: true, Mode: 0o777 | fs.ModeSticky},
		"var/lib/rik":               {Dir: true, UID: user, GID: user},
		tokenDir:                    {Dir: true, Mode: 0o700, UID: user, GID: user},
		"usr/share/doc/rik/LICENSE": {Content: text},
	}, nil
}

// add adds programs, and a link in /usr/bin for each command.
func add(files map[string]ociimage.File, dir string, programs, commands []string) {
	for _, name := range programs {
		files[lib+name] = ociimage.File{Source: filepath.Join(dir, name)}
	}
	for _, name := range commands {
		files["usr/bin/"+name] = ociimage.File{Link: "../lib/rik/" + name}
	}
}

const searchPath = "PATH=/usr/bin:/usr/sbin"

// rik returns the image of the server, which also has the command line.
func rik(p platform, license string) (ociimage.Spec, error) {
	files, err := base(license)
	if err != nil {
		return ociimage.Spec{}, err
	}
	files[dataDir] = ociimage.File{Dir: true, Mode: 0o700, UID: user, GID: user}
	programs := []string{"rik", "rikctl"}
	add(files, p.programs, programs, programs)
	debian, err := p.packages(programs, false)
	return ociimage.Spec{
		Layers: []ociimage.Layer{{Files: debian}, {Files: files}}, User: "65532:65532", WorkingDir: "/", Env: []string{searchPath, "HOME=/var/lib/rik"},
		Entrypoint: []string{"/usr/bin/rik"}, Cmd: []string{"server", "--no-agent"}, ExposedPorts: []string{"5000/tcp", "4995/tcp", "4997/tcp"},
	}, err
}

// riklet returns the image of a node.
func riklet(p platform, license string) (ociimage.Spec, error) {
	files, err := base(license)
	if err != nil {
		return ociimage.Spec{}, err
	}
	files["var/lib/riklet"] = ociimage.File{Dir: true, Mode: 0o700}
	programs := []string{"riklet", "rik-shim", "rik-unpack", "rik-dns", "runc"}
	add(files, p.programs, programs, programs[:1])
	debian, err := p.packages(programs, true)
	return ociimage.Spec{
		Layers: []ociimage.Layer{{Files: debian}, {Files: files}}, WorkingDir: "/", Env: []string{searchPath, "HOME=/root"},
		Entrypoint: []string{"/usr/bin/riklet", "container", "--"},
	}, err
}

// hello returns the image of the sample application.
func hello(p platform, _ string) (ociimage.Spec, error) {
	return ociimage.Spec{
		Files:      map[string]ociimage.File{"hello": {Source: filepath.Join(p.programs, "hello")}},
		Entrypoint: []string{"/hello"}, User: "65532:65532",
	}, nil
}
