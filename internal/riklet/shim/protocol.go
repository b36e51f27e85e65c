// Package shim is the agent's side of the supervisor that every Pod has: the messages between
// the two, starting a supervisor, and finding it again.
//
// A supervisor (cmd/rik-shim, internal/riklet/shim/server) is the parent of a Pod's containers.
// It outlives the agent, holds the namespaces that the containers share, writes their logs and
// records how they ended. It makes no decisions: it starts, restarts or stops a container only
// on request, and it ends only on request.
//
// The two exchange JSON over a unix socket. The agent creates the socket and passes it on, so
// that it accepts connections from the start. Any number of connections may be open. Each one
// receives every exit since its greeting.
package shim

import (
	"errors"
	"time"

	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/shim/launch"
	"rik.dev/rik/internal/riklet/shim/logfile"
)

// ListenFD is the descriptor of a supervisor's listening socket.
const ListenFD = 3

var (
	// ErrGone is returned if no supervisor answers.
	ErrGone = errors.New("supervisor has ended")
	// ErrBusy is returned by Shutdown while containers run.
	ErrBusy = errors.New("supervisor still has running containers")
)

// StartError is the supervisor's answer to a failed Start.
type StartError struct {
	// ExitCode is as in a shell: 127 if the program does not exist, 126 if it cannot be
	// executed. It is 0 if the program is not the cause, and always for Argv.
	ExitCode int
	Text     string
}

func (e *StartError) Error() string { return e.Text }

// Settings configure a new supervisor. They are its argument.
type Settings struct {
	// Hostname is set if the supervisor has its own UTS namespace.
	Hostname string `json:"hostname,omitempty"`
	// Loopback brings the loopback interface of the network namespace up.
	Loopback bool `json:"loopback,omitempty"`
	// Cgroups are the cgroup.procs files to join.
	Cgroups []string `json:"cgroups,omitempty"`
}

// Start requests one run of a container. Exactly one of Argv, Process and Guest must be set.
type Start struct {
	Container string `json:"container"`
	Attempt   int    `json:"attempt"`
	// Argv is the command line of an OCI runtime: a detached run.
	Argv []string `json:"argv,omitempty"`
	// Process is a plain process. It is a child of the supervisor and leads a session. SIGKILL
	// kills its whole process group. Processes that left the group, and those left after any
	// other end, are killed with its cgroup.
	Process *launch.Process `json:"process,omitempty"`
	// Guest is a process in the microVM of the supervisor's Link.
	Guest *guest.Process `json:"guest,omitempty"`
	// PIDFile is where the runtime writes the process ID, and RuntimeLog where it writes errors.
	// Both are for Argv only.
	PIDFile    string `json:"pidFile"`
	RuntimeLog string `json:"runtimeLog"`
	// ConsoleSocket is where the runtime sends the terminal; empty means no terminal.
	ConsoleSocket string         `json:"consoleSocket,omitempty"`
	LogDir        string         `json:"logDir"`
	LogLimits     logfile.Limits `json:"logLimits"`
	// MarkFile is created before the runtime is called. ExitFile is written durably before an
	// exit is reported. They are the records of a supervisor that is gone.
	MarkFile string `json:"markFile"`
	ExitFile string `json:"exitFile"`
}

// Container is the supervisor's record of a container's latest run.
type Container struct {
	Name      string    `json:"name"`
	Attempt   int       `json:"attempt"`
	PID       int       `json:"pid"` // on the node; 0 for a run in a guest
	StartedAt time.Time `json:"startedAt"`
	// Starting means that the runtime has not returned yet. Requesting the same attempt again
	// waits for that.
	Starting bool `json:"starting,omitempty"`
	Exited   bool `json:"exited,omitempty"`
	ExitCode int  `json:"exitCode,omitempty"` // 128+n for signal n
	// OOMKilled is set only for a run in a guest, which cannot be queried after the run has ended.
	OOMKilled  bool      `json:"oomKilled,omitempty"`
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	// Message is the reason for an end that the process itself did not cause.
	Message string `json:"message,omitempty"`
	// NeverRan means that the runtime's own process could not execute the program, as Message
	// describes.
	NeverRan bool `json:"neverRan,omitempty"`
	// LogError reports that output was lost, for example on a full disk.
	LogError string `json:"logError,omitempty"`
}

// The operations of a Request.
const (
	OpStart    = "start"
	OpSignal   = "signal"
	OpShutdown = "shutdown"
	OpLink     = "link"
)

// Link requests the supervisor to open its microVM's channel and to share it: every connection
// to Socket is one stream to the guest. The supervisor answers when the guest's init does. The
// request may be repeated. All runs in the guest end with the channel.
type Link struct {
	Channel guest.Channel `json:"channel"`
	Socket  string        `json:"socket"` // path; at most 107 bytes
	// TimeoutMillis is the timeout for the guest's init.
	TimeoutMillis int64 `json:"patienceMillis"`
}

// Request is one request to a supervisor.
type Request struct {
	ID        int64  `json:"id"`
	Op        string `json:"op"`
	Start     *Start `json:"start,omitempty"`
	Link      *Link  `json:"link,omitempty"`
	Container string `json:"container,omitempty"`
	Signal    int    `json:"signal,omitempty"`
}

// Message is a message from a supervisor: its greeting, an answer (ID is not 0), or the exit of
// a container.
type Message struct {
	ID    int64  `json:"id,omitempty"`
	Error string `json:"error,omitempty"`
	// ExitCode is that of a StartError.
	ExitCode  int        `json:"exitCode,omitempty"`
	Busy      bool       `json:"busy,omitempty"`
	Container *Container `json:"container,omitempty"`
	Hello     *Hello     `json:"hello,omitempty"`
}

// Hello is the greeting of every new connection.
type Hello struct {
	PID        int         `json:"pid"`
	Containers []Container `json:"containers,omitempty"`
}
