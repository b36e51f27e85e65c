package node

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"rik.dev/rik/internal/install"
	"rik.dev/rik/internal/install/layout"
)

// settingsFiles are the files with the settings of the services.
var settingsFiles = slices.Concat(layout.SettingsFiles(layout.Server), layout.SettingsFiles(layout.Node))

// settings are what the files of services set: variables, and flags in RIK_SERVER_FLAGS and
// RIKLET_FLAGS.
type settings map[string]string

// variables are the variables of the services that have a flag of doctor.
var variables = map[string]string{"RIK_SERVER": "server", "DATABASE_LOCATION": "data-dir", "PORT": "port"}

// flagVariables have further flags of the services.
var flagVariables = []string{layout.FlagsVariable(layout.Server), layout.FlagsVariable(layout.Node)}

// readSettings reads files of settings. Files that do not exist are skipped, and so are those that
// this user may not read, unless must is set.
func readSettings(files []string, must bool) (settings, error) {
	skip := []error{fs.ErrNotExist, fs.ErrPermission}
	if must {
		skip = nil
	}
	all, err := install.ReadSettings(files, skip...)
	if err != nil {
		return nil, usagef("--config: %w", err)
	}
	return all, nil
}

// apply sets the flags that the user did not set. other is a set with the same flags, in which flags of
// services are parsed; those that doctor does not have are skipped.
func (s settings) apply(flags, other *pflag.FlagSet) error {
	other.ParseErrorsAllowlist.UnknownFlags = true
	for name, flag := range variables {
		if value := s[name]; value != "" {
			if err := other.Set(flag, value); err != nil {
				return usagef("%s=%s: %w", name, value, err)
			}
		}
	}
	for _, name := range flagVariables {
		if err := other.Parse(strings.Fields(s[name])); err != nil {
			return fmt.Errorf("%s: %w", name, usagef("%w", err))
		}
	}
	var problem error
	other.Visit(func(f *pflag.Flag) {
		if flags.Changed(f.Name) {
			return
		}
		if err := flags.Set(f.Name, f.Value.String()); err != nil {
			problem = errors.Join(problem, err)
		}
	})
	return problem
}
