// Package shim is the agent's side of the supervisor that every Pod has: the
// messages between the two, starting one, and finding it again.
//
// A supervisor (cmd/rik-shim, internal/riklet/shim/server) is the parent of a
// Pod's containers. It outlives the agent, holds the namespaces that the
// containers share, writes their logs and notes how they ended. It decides
// nothing: it never starts, restarts or stops a container of its own accord,
// and it ends when it is told to.
//
// The two speak JSON over a unix socket that the agent makes and hands down,
// so that it can be dialed from the first moment. Any number of connections
// may be open; each is told of every end that it did not see.
package shim

import (
	"errors"
	"time"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/shim/launch"
	"rik.dev/rik/internal/riklet/shim/logfile"
)

// ListenFD is where a supervisor finds its listening socket.
const ListenFD = 3

var (
	// ErrGone is returned when no supervisor answers any more.
	ErrGone = errors.New("supervisor is gone")
	// ErrBusy is returned by Shutdown while containers run.
	ErrBusy = errors.New("supervisor still has running containers")
)

// StartError is the supervisor's answer to a Start that did not succeed.
type StartError struct {
	// ExitCode is 127 when there is no such program, 126 when it cannot be executed,
	// as a shell has it; 0 when it is not the program's fault, and for Argv.
	ExitCode int
	Text     string
}

func (e *StartError) Error() string { return e.Text }

// Settings are what a supervisor is told when it is made, as its argument.
type Settings struct {
	// Hostname is set when the supervisor is in a UTS namespace of its own.
	Hostname string `json:"hostname,omitempty"`
	// Loopback brings the network namespace's own interface up.
	Loopback bool `json:"loopback,omitempty"`
	// Cgroups are the cgroup.procs files to join.
	Cgroups []string `json:"cgroups,omitempty"`
}

// Start orders one run of a container. Exactly one of Argv, Process and Guest says
// what runs.
type Start struct {
	Container string `json:"container"`
	Attempt   int    `json:"attempt"`
	// Argv is the command line of an OCI runtime: a detached run.
	Argv []string `json:"argv,omitempty"`
	// Process is a plain process, the supervisor's own child and the leader of a
	// session. To send it SIGKILL is to kill its whole process group; what leaves
	// that, and what is left of any other end, dies with its cgroup.
	Process *launch.Process `json:"process,omitempty"`
	// Guest is a process in the microVM of the supervisor's Link.
	Guest *guest.Process `json:"guest,omitempty"`
	// PIDFile is where the runtime notes the process, RuntimeLog where it says
	// what went wrong. Both are for Argv only.
	PIDFile    string `json:"pidFile"`
	RuntimeLog string `json:"runtimeLog"`
	// ConsoleSocket is where the runtime hands over the terminal; empty: none.
	ConsoleSocket string         `json:"consoleSocket,omitempty"`
	LogDir        string         `json:"logDir"`
	LogLimits     logfile.Limits `json:"logLimits"`
	// MarkFile is made before the runtime is called, ExitFile, durable, before
	// an end is told. They answer for a supervisor that is gone.
	MarkFile string `json:"markFile"`
	ExitFile string `json:"exitFile"`
}

// Container is what a supervisor knows of a container's latest run.
type Container struct {
	Name      string    `json:"name"`
	Attempt   int       `json:"attempt"`
	PID       int       `json:"pid"` // on the node; 0 for a run in a guest
	StartedAt time.Time `json:"startedAt"`
	// Starting: the runtime has not returned yet. To order the same attempt
	// again is to wait for that.
	Starting   bool      `json:"starting,omitempty"`
	Exited     bool      `json:"exited,omitempty"`
	ExitCode   int       `json:"exitCode,omitempty"`  // 128+n for signal n
	OOMKilled  bool      `json:"oomKilled,omitempty"` // in a guest, which is asked no more
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	// Message says why it ended when that was not its own doing.
	Message string `json:"message,omitempty"`
	// NeverRan: the runtime's own process took the program's place and could not
	// execute it, as Message says.
	NeverRan bool `json:"neverRan,omitempty"`
	// LogError says that output was lost, for want of disk say.
	LogError string `json:"logError,omitempty"`
}

// The operations of a Request.
const (
	OpStart    = "start"
	OpSignal   = "signal"
	OpShutdown = "shutdown"
	OpLink     = "link"
)

// Link orders the supervisor to take hold of its microVM's channel and to lend it:
// every connection to Socket is one stream to the guest. It answers when the guest's
// init does, and may be ordered again. All runs in the guest end with the channel.
type Link struct {
	Channel guest.Channel `json:"channel"`
	Socket  string        `json:"socket"` // path; at most 107 bytes
	// TimeoutMillis bounds the wait for the guest's init.
	TimeoutMillis int64 `json:"patienceMillis"`
}

// Request is one order to a supervisor.
type Request struct {
	ID        int64  `json:"id"`
	Op        string `json:"op"`
	Start     *Start `json:"start,omitempty"`
	Link      *Link  `json:"link,omitempty"`
	Container string `json:"container,omitempty"`
	Signal    int    `json:"signal,omitempty"`
}

// Message is what a supervisor says: its greeting, an answer (ID is not 0), or
// the end of a container.
type Message struct {
	ID    int64  `json:"id,omitempty"`
	Error string `json:"error,omitempty"`
	// ExitCode is that of a StartError.
	ExitCode  int        `json:"exitCode,omitempty"`
	Busy      bool       `json:"busy,omitempty"`
	Container *Container `json:"container,omitempty"`
	Hello     *Hello     `json:"hello,omitempty"`
}

// Hello greets every new connection.
type Hello struct {
	PID        int         `json:"pid"`
	Containers []Container `json:"containers,omitempty"`
}
