package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"rik.dev/rik/api/rik/nodestate"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/executable"
	"rik.dev/rik/internal/riklet"
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
		o.NodeName = nodeName(name)
	}
	var problems []error
	for _, p := range nodestate.NodeNameProblems(o.NodeName) {
		problems = append(problems, usagef("--node-name %q: %s", o.NodeName, p))
	}
	return problems
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

// validateReserved refuses reservations of all capacity, because no instance could ever run
// here.
func (o *Options) validateReserved() []error {
	reserved, err := o.reserved()
	if err != nil {
		return []error{err}
	}
	if len(reserved) == 0 {
		return nil
	}
	capacity, err := monitor.Capacity(context.Background(), existing(o.StateDir))
	if err != nil {
		return []error{err}
	}
	return tooMuch(reserved, capacity)
}

func tooMuch(reserved, capacity rikv1alpha1.ResourceList) []error {
	var problems []error
	for _, name := range reservable {
		has := capacity[name]
		if q := reserved[name]; q.Sign() > 0 && q.Cmp(has) >= 0 {
			problems = append(problems, usagef("--reserved %s=%s leaves nothing of the %s of this machine: reserve less, such as 500m of cpu or 1Gi of memory",
				name, q.String(), has.String()))
		}
	}
	return problems
}

// existing returns the directory, or its nearest parent that exists.
func existing(dir string) string {
	for dir != "/" && dir != "." {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// validateRuntimes validates the additional runtimes.
func (o *Options) validateRuntimes() []error {
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(o.Runtimes)) {
		path := o.Runtimes[name]
		if len(validation.IsDNS1123Label(name)) > 0 || name == oci.DefaultRuntime {
			problems = append(problems, usagef("--runtime %s=%s: %q is not a name for an additional runtime: use a-z, 0-9 and -, and --runc for %s", name, path, name, oci.DefaultRuntime))
		}
		if err := executable.Check(path); err != nil {
			problems = append(problems, fmt.Errorf("--runtime %s=%s: %w; use the absolute path of an OCI runtime", name, path, err))
		}
	}
	return problems
}

// validateRegistries validates the files that the unpacker reads at each pull.
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
	return problems
}
