package layout

import (
	"embed"
	"errors"
	"io/fs"
	"path"
	"strings"
)

// The texts have words such as @PROGRAMS@, as in the templates of autoconf. The package text/template
// would keep every method of every type in the programs: 4 MB more in riklet.
//
//go:embed units
var units embed.FS

// UnitOptions change a unit.
type UnitOptions struct {
	// ControlPlaneOnly makes the unit of a server that runs no instances. It needs no root and no
	// mounts of its own, so it runs as a user without rights, in a sandbox.
	ControlPlaneOnly bool
}

// User is the user of a server that runs no instances.
const User = "rik"

// UnitName returns the name of the systemd service of a package.
func UnitName(p Package) string { return string(p) + ".service" }

// Unit returns the systemd unit of a server or of a node.
func Unit(p Package, at Paths, o UnitOptions) File {
	name := UnitName(p)
	if o.ControlPlaneOnly {
		name = "rik-no-agent.service"
	}
	return File{
		Package: p, Kind: Text, Path: path.Join(at.Units, UnitName(p)), Mode: 0o644,
		Content: strings.NewReplacer("@PROGRAMS@", at.Programs, "@CONFIG@", ConfigOf(p).Path, "@USER@", User).Replace(read(name)),
	}
}

// ConfigOf returns the configuration file of a server or of a node: the flags and the environment
// variables of its service. It may have a join token, so only root may read it.
func ConfigOf(p Package) File {
	name := map[Package]string{Server: "server.env", Node: "agent.env"}[p]
	return File{Package: p, Kind: Config, Path: path.Join(ConfigDir, name), Mode: 0o600, Content: read(name)}
}

// SettingsFiles returns the files with the settings of a service, in the order in which its unit
// reads them: a later one wins. The first is the file of earlier versions.
func SettingsFiles(p Package) []string {
	return []string{path.Join("/etc/default", string(p)), ConfigOf(p).Path}
}

// FlagsVariable returns the variable with the flags of a service.
func FlagsVariable(p Package) string {
	return map[Package]string{Server: "RIK_SERVER_FLAGS", Node: "RIKLET_FLAGS"}[p]
}

func read(name string) string {
	text, err := units.ReadFile(path.Join("units", name))
	if err != nil {
		panic("programmer error: " + err.Error())
	}
	return string(text)
}

// ignoreMissing makes a missing directory an empty one.
func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
