// Package launch turns the calling process into a plain process that a supervisor runs: a VMM,
// or an App.
//
// A supervisor calls its own program again with Word as the only argument. The Process is in its
// environment, where other users of the machine cannot read it. The new process joins the
// cgroups, drops its privileges and executes the program in its place. Therefore the supervisor
// is the program's parent and the process ID stays the same. The new process writes an error
// before that to ErrorFD, which the start of the program closes. If ErrorFD has no data, the
// program runs.
//
// Environ and ReadFailure are for callers that start the process themselves, like the
// supervisor. Other callers use Command and Start. Run is the code of the new process.
package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"rik.dev/rik/internal/excerpt"
)

// Word is the first argument of a supervisor that becomes a plain process.
const Word = "launch"

// ErrorFD is the descriptor for a failure, in the format that ReadFailure reads. If it is not a
// pipe, the failure is written as text to the standard error.
const ErrorFD = 3

// Process is a plain process on the node.
type Process struct {
	// Argv is the program, as a path or a name on the PATH of Env, and its arguments.
	Argv []string `json:"argv"`
	// Env is the complete environment.
	Env []string `json:"env,omitempty"`
	// Dir is the working directory; empty means /. The process must have permission to enter it.
	// With Enclosed, it may lack permission for the directories above.
	Dir      string `json:"dir,omitempty"`
	Enclosed bool   `json:"enclosed,omitempty"`
	// UID, GID and Groups are those of the process. 0, for root, is refused unless Root is set.
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
	Root   bool     `json:"root,omitempty"`
	// Cgroups are the cgroup.procs files to join, before privileges are dropped.
	Cgroups []string `json:"cgroups,omitempty"`
	// KeepCapabilities lets root keep its capabilities. Other users lose all of them, and cannot
	// gain any through set-user-ID programs.
	KeepCapabilities bool `json:"keepCapabilities,omitempty"`
	// OpenFiles is the limit of open files; 0 leaves it unchanged.
	OpenFiles uint64 `json:"openFiles,omitempty"`
	// OOMScoreAdj is written to /proc/self/oom_score_adj.
	OOMScoreAdj int `json:"oomScoreAdj,omitempty"`
	// NamespacesOf is a process whose network, IPC and UTS namespaces are entered first; 0 keeps
	// those of the caller. A supervisor's child is in the right ones already.
	NamespacesOf int `json:"namespacesOf,omitempty"`
	// Hide is a directory in whose place the process sees an empty one. Binds are files and
	// directories that it sees at other paths. Either of them requires a new mount namespace.
	Hide  string `json:"hide,omitempty"`
	Binds []Bind `json:"binds,omitempty"`
}

// Bind mounts a file or directory of the node at another path. A target below Process.Hide is
// created. Other targets must exist.
type Bind struct {
	Source string `json:"source"`
	Target string `json:"target"`
}

// noID is the ID that the kernel interprets as "no change". The process would stay root.
const noID = 1<<32 - 1

// maxShown limits an argument or variable in an error, in bytes.
const maxShown = 60

// Validate reports everything that would prevent the start of the process.
func (p Process) Validate() error {
	var errs []error
	if len(p.Argv) == 0 || p.Argv[0] == "" {
		errs = append(errs, errors.New("the command is empty"))
	}
	for _, text := range append(append([]string{p.Dir}, p.Argv...), p.Env...) {
		if strings.ContainsRune(text, 0) {
			errs = append(errs, fmt.Errorf("%q has a NUL byte, which no argument can contain", excerpt.Of(text, maxShown)))
		}
	}
	for _, variable := range p.Env {
		if strings.IndexByte(variable, '=') < 1 {
			errs = append(errs, fmt.Errorf("%q in the environment does not have the form NAME=value", excerpt.Of(variable, maxShown)))
		}
	}
	if p.NamespacesOf < 0 {
		errs = append(errs, fmt.Errorf("%d is not a process whose namespaces can be entered", p.NamespacesOf))
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
			return fmt.Errorf("the process would run as %s 0 (root) without a request for it: give it a %s of its own", kind, kind)
		}
	}
	return nil
}

// chunk is the amount of a Process in one variable, because the kernel accepts no string above
// 128 KiB (MAX_ARG_STRLEN).
const chunk = 100 << 10

const variable = "RIK_LAUNCH_"

// Environ returns the complete environment for a supervisor's program that is called with Word.
// It also keeps that program small: with one processor and no garbage collection it starts no
// threads that a tight limit on processes could refuse.
func Environ(p Process) []string {
	data, err := json.Marshal(p)
	if err != nil {
		panic(fmt.Sprintf("programmer error: encoding a process: %v", err))
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
		return p, fmt.Errorf("reading what to run: %w; the riklet and the supervisor start this program, do not start it yourself", err)
	}
	return p, p.Validate()
}
