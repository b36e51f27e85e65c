// Package portowner finds the process that has a port of this machine, as ss and lsof do.
package portowner

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Protocol is a protocol with ports.
type Protocol string

// The protocols that Find knows.
const (
	TCP Protocol = "tcp"
	UDP Protocol = "udp"
)

// The kernel's numbers of states in /proc/net (include/net/tcp_states.h).
const (
	stateListen      = "0A" // a TCP socket that accepts connections
	stateUnconnected = "07" // a UDP socket that is not connected to a peer
)

var (
	// ErrFree means that no socket has the port.
	ErrFree = errors.New("no process has the port")
	// ErrHidden means that a process has the port, and that it was not found. This user cannot see
	// the sockets of other users' processes, or the process is in another PID namespace.
	ErrHidden = errors.New("the process that has the port is not visible")
)

// Owner is a process that has a port.
type Owner struct {
	PID     int
	Program string
}

// String returns a text such as "process 17 (nginx)".
func (o Owner) String() string { return fmt.Sprintf("process %d (%s)", o.PID, o.Program) }

// Find returns the process that listens on a port, in the network namespace of the calling
// thread. Without such a process the error is ErrFree or ErrHidden.
func Find(protocol Protocol, port int) (Owner, error) {
	inodes := map[string]bool{}
	state := stateListen
	if protocol == UDP {
		state = stateUnconnected
	}
	for _, table := range []Protocol{protocol, protocol + "6"} {
		if err := collect(filepath.Join("/proc/thread-self/net", string(table)), port, state, inodes); err != nil {
			return Owner{}, err
		}
	}
	if len(inodes) == 0 {
		return Owner{}, ErrFree
	}
	// A failed pattern is the only error of Glob.
	files, _ := filepath.Glob("/proc/[0-9]*/fd/[0-9]*")
	for _, file := range files {
		target, err := os.Readlink(file)
		if err != nil || !inodes[target] {
			continue
		}
		dir := strings.SplitN(file, "/", 4)[2]
		if pid, err := strconv.Atoi(dir); err == nil {
			return Owner{PID: pid, Program: programName(dir)}, nil
		}
	}
	return Owner{}, ErrHidden
}

func programName(pid string) string {
	name, err := os.ReadFile(filepath.Join("/proc", pid, "comm"))
	if err != nil {
		return "unknown program"
	}
	return strings.TrimSpace(string(name))
}

// collect adds "socket:[inode]", the form of the link in /proc/PID/fd, for every socket in the
// table that has the port and the state. A kernel without IPv6 lacks the table of IPv6.
func collect(table string, port int, state string, inodes map[string]bool) error {
	f, err := os.Open(table)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listing the ports in use: %w", err)
	}
	defer f.Close()
	suffix := fmt.Sprintf(":%04X", port)
	scanner := bufio.NewScanner(f)
	for scanner.Scan() {
		// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
		fields := strings.Fields(scanner.Text())
		if len(fields) > 9 && strings.HasSuffix(fields[1], suffix) && fields[3] == state {
			inodes["socket:["+fields[9]+"]"] = true
		}
	}
	return scanner.Err()
}
