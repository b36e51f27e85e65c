package forward

import (
	"fmt"
	"strconv"
	"strings"
)

// Port is one pair of ports.
type Port struct {
	// Local is the port to listen on; 0 means any free port.
	Local int
	// Remote is the port of the instance.
	Remote int
}

// ParsePort parses LOCAL:REMOTE, :REMOTE for any free local port, and REMOTE for the same port
// on both sides.
func ParsePort(text string) (Port, error) {
	local, remote, both := strings.Cut(text, ":")
	if !both {
		remote = local
	}
	p := Port{}
	var err error
	if p.Remote, err = number(remote); err != nil {
		return Port{}, fmt.Errorf("port %q: %w", text, err)
	}
	if local == "" && both {
		return p, nil
	}
	if p.Local, err = number(local); err != nil {
		return Port{}, fmt.Errorf("port %q: %w", text, err)
	}
	return p, nil
}

func number(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is not a number between 1 and 65535: write [LOCAL:]REMOTE, such as 8080:80", text)
	}
	return int(n), nil
}
