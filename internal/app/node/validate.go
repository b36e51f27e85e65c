package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"rik.dev/rik/api/rik/nodestate"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/executable"
	"rik.dev/rik/internal/riklet"
	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/monitor"
	"rik.dev/rik/internal/riklet/runner/oci"
)

// validateName sets the default name of the node, which is the host name.
func (o *Options) validateName() []error {
	if o.NodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			return []error{fmt.Errorf("reading the host name: %w", err)}
		}
		o.NodeName = nodestate.NodeName(name)
	}
	var problems []error
	for _, p := range nodestate.NodeNameProblems(o.NodeName) {
		problems = append(problems, usagef("--node-name %q: %s", o.NodeName, p))
	}
	return problems
}

// validateInterface sets the address to that of the named interface, unless an address is set.
func (o *Options) validateInterface() []error {
	if o.Address != "" || o.Interface == "" {
		return nil
	}
	address, err := monitor.AddressOf(o.Interface)
	if err != nil {
		return []error{usagef("--iface %q: %w", o.Interface, err)}
	}
	o.Address = address
	return nil
}

// validateNode reports mistakes that the agent would refuse. The agent starts only after the
// cluster.
func (o *Options) validateNode() []error {
	taints, err := o.taints()
	if err != nil {
		return []error{err}
	}
	var problems []error
	for _, part := range []struct {
		flag   string
		config riklet.Config
	}{
		{"--node-label", riklet.Config{Labels: o.Labels}},
		{"--node-taint", riklet.Config{Taints: taints}},
		{"--max-instances", riklet.Config{MaxInstances: o.MaxInstances}},
		{"--node-address", riklet.Config{InternalAddress: o.Address}},
		{"--node-external-address", riklet.Config{ExternalAddress: o.ExternalAddress}},
	} {
		for _, p := range part.config.ValidateNode() {
			problems = append(problems, usagef("%s: %w", part.flag, p))
		}
	}
	return problems
}

// validateReserved refuses reservations of all capacity.
func (o *Options) validateReserved() []error {
	reserved, err := o.reserved()
	if err != nil {
		return []error{err}
	}
	found, err := monitor.CheckReserved(context.Background(), reserved, o.StateDir)
	if err != nil {
		return []error{err}
	}
	var problems []error
	for _, p := range found {
		problems = append(problems, usagef("%w", p))
	}
	return problems
}

// reserved parses --reserved.
func (o *Options) reserved() (rikv1alpha1.ResourceList, error) {
	list, err := monitor.ParseReserved(o.Reserved)
	if err != nil {
		return nil, usagef("%w", err)
	}
	return list, nil
}

// validateRuntimes validates the additional runtimes.
func (o *Options) validateRuntimes() []error {
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(o.Runtimes)) {
		path := o.Runtimes[name]
		if !oci.ValidRuntime(name) {
			problems = append(problems, usagef("--runtime %s=%s: %q is not a name for an additional runtime: use a-z, 0-9 and -, and --runc for %s", name, path, name, oci.DefaultRuntime))
		}
		if err := executable.Check(path); err != nil {
			problems = append(problems, fmt.Errorf("--runtime %s=%s: %w; use the absolute path of an OCI runtime", name, path, err))
		}
	}
	return problems
}

// validateRegistries validates the files that the unpacker reads at each pull. A mistake that is made
// while the node runs makes pulls fail.
func (o *Options) validateRegistries() []error {
	var problems []error
	for _, f := range []struct {
		flag, path string
		directory  bool
	}{{"--registries-conf", o.RegistriesConf, false}, {"--registries-certs", o.CertDir, true}, {"--registries-auth", o.RegistriesAuth, false}} {
		if f.path == "" {
			continue
		}
		info, err := os.Stat(f.path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			err = errors.New("the file or directory does not exist")
		case err != nil:
		case info.IsDir() && !f.directory:
			err = errors.New("is a directory")
		case !info.IsDir() && f.directory:
			err = errors.New("is not a directory")
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s %s: %w; remove the flag to use the system's file", f.flag, f.path, err))
		}
	}
	if len(problems) > 0 || o.Unpacker == "" {
		return problems
	}
	if err := image.CheckRegistries(context.Background(), image.Config{
		Unpacker: []string{o.Unpacker}, RegistriesDir: o.RegistriesDir, RegistriesConf: o.RegistriesConf, AuthFile: o.RegistriesAuth, CertDir: o.CertDir,
	}); err != nil {
		problems = append(problems, err)
	}
	return problems
}
