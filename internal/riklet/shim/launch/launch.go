// Package launch turns the calling process into a plain process that a supervisor
// was told to run: a VMM, or an App.
//
// A supervisor calls its own program again with Word as its only argument and the
// Process in its environment, where other users of the machine cannot read it. That
// process joins the cgroups, gives up what it must not have and executes the program
// in its own place, so that the supervisor is its parent and its number is the
// program's. What goes wrong before is written to ErrorFD, which the program's start
// closes: nothing read from it means that the program runs.
//
// Environ and ReadFailure are for who starts it by itself, as the supervisor does,
// Command and Start for everybody else; Run is the inside.
package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Word is the first argument of a supervisor that is to become a plain process.
const Word = "launch"

// ErrorFD is where a failure is told, in the form that ReadFailure reads. When it is
// no pipe, the failure goes to the standard error, for a reader.
const ErrorFD = 3

// Process is a plain process on the node.
type Process struct {
	// Argv is the program, as a path or a name on the PATH of Env, and its arguments.
	Argv []string `json:"argv"`
	// Env is the whole environment.
	Env []string `json:"env,omitempty"`
	// Dir is the working directory; empty: /. The process itself must be able to
	// enter it, unless it is Enclosed: then what is above it may be closed to it.
	Dir      string `json:"dir,omitempty"`
	Enclosed bool   `json:"enclosed,omitempty"`
	// UID, GID and Groups are those of the process. Root's, which are 0, are refused
	// unless Root is set.
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
	Root   bool     `json:"root,omitempty"`
	// Cgroups are the cgroup.procs files to join, before anything is given up.
	Cgroups []string `json:"cgroups,omitempty"`
	// KeepCapabilities leaves root what it has; everybody else loses every one, and
	// can gain none by a program with a set-user-ID bit.
	KeepCapabilities bool `json:"keepCapabilities,omitempty"`
	// OpenFiles is the limit of open files; 0 leaves it.
	OpenFiles uint64 `json:"openFiles,omitempty"`
	// OOMScoreAdj is written to /proc/self/oom_score_adj.
	OOMScoreAdj int `json:"oomScoreAdj,omitempty"`
	// NamespacesOf is a process whose network, IPC and UTS namespaces are entered
	// first; 0: those of the caller. A supervisor's child is in the right ones.
	NamespacesOf int `json:"namespacesOf,omitempty"`
	// Hide is a directory in whose place the process sees an empty one, and Binds are
	// what it sees in other places; then it has a mount namespace of its own.
	Hide  string `json:"hide,omitempty"`
	Binds []Bind `json:"binds,omitempty"`
}

// Bind shows a file or directory of the node in another place. A target below
// Process.Hide is made, any other must exist.
type Bind struct {
	Source string `json:"source"`
	Target string `json:"target"`
}

// noID is what the kernel takes for "leave it as it is", which would be root.
const noID = 1<<32 - 1

// Validate reports everything by which the process could never be started.
func (p Process) Validate() error {
	var errs []error
	if len(p.Argv) == 0 || p.Argv[0] == "" {
		errs = append(errs, errors.New("no program: the command is empty"))
	}
	for _, text := range append(append([]string{p.Dir}, p.Argv...), p.Env...) {
		if strings.ContainsRune(text, 0) {
			errs = append(errs, fmt.Errorf("%q holds a zero byte, which no program can be given", text[:min(len(text), 60)]))
		}
	}
	for _, variable := range p.Env {
		if strings.IndexByte(variable, '=') < 1 {
			errs = append(errs, fmt.Errorf("%q in the environment is not of the form NAME=value", variable[:min(len(variable), 60)]))
		}
	}
	if p.NamespacesOf < 0 {
		errs = append(errs, fmt.Errorf("%d is no process whose namespaces could be entered", p.NamespacesOf))
	}
	return errors.Join(append(errs, p.validateIDs())...)
}

func (p Process) validateIDs() error {
	ids := append([]uint32{p.UID, p.GID}, p.Groups...)
	for i, id := range ids {
		kind := "group"
		if i == 0 {
			kind = "user"
		}
		if id == noID {
			return fmt.Errorf("%d is not an ID of a %s", id, kind)
		}
		if id == 0 && !p.Root {
			return fmt.Errorf("the process would run as %s 0, which is root's and was not asked for: give it a %s of its own", kind, kind)
		}
	}
	return nil
}

// chunk is how much of a Process goes into one variable: the kernel takes no string
// above 128 KiB (MAX_ARG_STRLEN).
const chunk = 100 << 10

const variable = "RIK_LAUNCH_"

// Environ is the whole environment for a supervisor's program that is called with
// Word. It also keeps that program small while it lives: one processor, no garbage
// collection, and so no thread that a tight limit of processes could refuse.
func Environ(p Process) []string {
	data, err := json.Marshal(p)
	if err != nil {
		panic(fmt.Sprintf("programmer error: a process that is no JSON: %v", err))
	}
	env := []string{"GOMAXPROCS=1", "GOGC=off"}
	for i := 0; len(data) > 0; i++ {
		n := min(len(data), chunk)
		env = append(env, variable+strconv.Itoa(i)+"="+string(data[:n]))
		data = data[n:]
	}
	return env
}

// parse is the reverse of Environ.
func parse(lookup func(string) (string, bool)) (Process, error) {
	var text strings.Builder
	for i := 0; ; i++ {
		part, ok := lookup(variable + strconv.Itoa(i))
		if !ok {
			break
		}
		text.WriteString(part)
	}
	var p Process
	if err := json.Unmarshal([]byte(text.String()), &p); err != nil {
		return p, fmt.Errorf("reading what to run: %w; the riklet and the supervisor call this, it is of no use by hand", err)
	}
	return p, p.Validate()
}
