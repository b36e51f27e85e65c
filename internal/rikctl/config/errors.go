package config

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
)

// MissingError reports that no place has a configuration.
type MissingError struct {
	// Looked lists each place with the reason why it has none.
	Looked []string
}

// Error lists the places that Find searched.
func (e *MissingError) Error() string {
	return "no configuration names a cluster; looked at\n  " + strings.Join(e.Looked, "\n  ")
}

// Next is what the user can do.
func (e *MissingError) Next() string {
	return `start a cluster on this machine with "sudo rik server" and run rikctl with sudo, ` +
		`or add another one with "rikctl config set-cluster NAME --server https://HOST:5000 --certificate-authority FILE --token TOKEN"`
}

// DeniedError reports a configuration that exists but that the user may not read.
type DeniedError struct {
	Path string
	// Target is the user's own file, which Find would read first.
	Target string
	Err    error
}

// Error names the file.
func (e *DeniedError) Error() string {
	return fmt.Sprintf("reading the configuration %s: permission denied", e.Path)
}

// Unwrap returns the cause.
func (e *DeniedError) Unwrap() error { return e.Err }

// Next is the command that solves the problem.
func (e *DeniedError) Next() string {
	if e.Target == "" || e.Path == e.Target {
		return "run the command with sudo"
	}
	dir := strings.TrimSuffix(e.Target, "/config.yaml")
	return fmt.Sprintf("run the command with sudo, or copy the file once:\n  mkdir -p %s && sudo install -m 600 -o \"$(id -un)\" %s %s",
		dir, e.Path, e.Target)
}

// WrongError reports a configuration with a mistake in it.
type WrongError struct {
	// Where is the file, or the environment variable.
	Where string
	Err   error

	next string
}

// Error names the file and the mistake.
func (e *WrongError) Error() string {
	return fmt.Sprintf("reading the configuration %s: %v", e.Where, e.Err)
}

// Unwrap returns the cause.
func (e *WrongError) Unwrap() error { return e.Err }

// Next is what the user can do.
func (e *WrongError) Next() string { return e.next }

func wrong(where, next string, err error) error {
	return &WrongError{Where: where, Err: err, next: next}
}

// WrongKubeconfig returns the WrongError of a kubeconfig that the user named.
func WrongKubeconfig(path string, err error) error {
	return wrong(path, "--kubeconfig takes a kubeconfig, and --context the name of a context in it; --config takes a file in rikctl's own form", cause(err))
}

// form describes the expected form of a configuration.
const form = `the file must look like "cluster: {name: NAME, server: 'https://HOST:5000', certificateAuthority: FILE, token: TOKEN}". ` +
	`A user with a certificate has clientCertificate and clientKey in place of the token. "rikctl config set-cluster" writes such a file`

func nextForServer(where string) string {
	if where == "$"+EnvServer {
		return "set " + where + " to the URL of the server, such as https://127.0.0.1:5000, or unset it"
	}
	return fmt.Sprintf("write \"server: 'https://HOST:5000'\" below \"cluster:\" in %s, or set $%s", where, EnvServer)
}

func unreadable(p place, err error) error {
	next := fmt.Sprintf("check the path that %s gives", p.label)
	if !p.must {
		next = "check the file, or name another one with --config"
	}
	return &WrongError{Where: fmt.Sprintf("%s (%s)", p.path, p.label), Err: cause(err), next: next}
}

// cause removes the path from an error whose message already has it.
func cause(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}
