package listener

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// stateListen is TCP_LISTEN in the state column of /proc/net/tcp.
const stateListen = "0A"

// describe says which process listens on port. The text is followed by "stop it".
func describe(port int) string {
	pid, program, err := findHolder(port)
	if err != nil {
		return "a process of another user has it"
	}
	return fmt.Sprintf("process %d (%s) has it", pid, program)
}

// errNoHolder means that no process was found. This user cannot see the sockets of other users'
// processes.
var errNoHolder = errors.New("no process found")

// findHolder finds the inode of the port's socket, and then the process with that inode among
// its open files, as ss and lsof do.
func findHolder(port int) (int, string, error) {
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		collect(table, port, inodes)
	}
	if len(inodes) == 0 {
		return 0, "", errNoHolder
	}
	files, err := filepath.Glob("/proc/[0-9]*/fd/[0-9]*")
	if err != nil {
		return 0, "", err
	}
	for _, file := range files {
		target, err := os.Readlink(file)
		if err != nil || !inodes[target] {
			continue
		}
		dir := strings.SplitN(file, "/", 4)[2]
		pid, err := strconv.Atoi(dir)
		if err != nil {
			continue
		}
		return pid, programName(dir), nil
	}
	return 0, "", errNoHolder
}

func programName(pid string) string {
	name, err := os.ReadFile(filepath.Join("/proc", pid, "comm"))
	if err != nil {
		return "unknown program"
	}
	return strings.TrimSpace(string(name))
}

// collect adds "socket:[inode]", the form of the link in /proc/PID/fd, for every socket in the
// table that listens on port.
func collect(table string, port int, inodes map[string]bool) {
	f, err := os.Open(table)
	if err != nil {
		return
	}
	defer f.Close()
	suffix := fmt.Sprintf(":%04X", port)
	for scanner := bufio.NewScanner(f); scanner.Scan(); {
		// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
		fields := strings.Fields(scanner.Text())
		if len(fields) > 9 && strings.HasSuffix(fields[1], suffix) && fields[3] == stateListen {
			inodes["socket:["+fields[9]+"]"] = true
		}
	}
}
