package layout

import (
	"embed"
	"errors"
	"io/fs"
	"path"
	"strings"
	"text/template"
)

//go:embed units
var units embed.FS

var templates = template.Must(template.ParseFS(units, "units/*"))

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
	return File{Package: p, Kind: Text, Path: path.Join(at.Units, UnitName(p)), Mode: 0o644, Content: render(UnitName(p), map[string]any{
		"Programs": at.Programs, "Options": o, "User": User, "DataDir": DataDir, "Config": ConfigOf(p).Path,
	})}
}

// ConfigOf returns the configuration file of a server or of a node: the flags and the environment
// variables of its service. It may have a join token, so only root may read it.
func ConfigOf(p Package) File {
	name := map[Package]string{Server: "server.env", Node: "agent.env"}[p]
	return File{Package: p, Kind: Config, Path: path.Join(ConfigDir, name), Mode: 0o600, Content: render(name, nil)}
}

func render(name string, values any) string {
	var text strings.Builder
	if err := templates.ExecuteTemplate(&text, name, values); err != nil {
		panic("programmer error: the template " + name + ": " + err.Error())
	}
	return text.String()
}

// ignoreMissing makes a missing directory an empty one.
func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
