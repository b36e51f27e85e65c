package engine

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrStopSignal is returned for an image whose stop signal is invalid. The signal that its
// program expects is not known, and another signal may do harm.
var ErrStopSignal = errors.New("the image's STOPSIGNAL is not a Linux signal: build it with one such as SIGTERM, SIGRTMIN+3 or 15")

// The range of real-time signals as the C libraries number them. They reserve two signals for
// themselves.
const (
	signalMin, signalMax = 34, 64
)

// StopSignal parses an image's StopSignal. An empty name means SIGTERM.
func StopSignal(name string) (syscall.Signal, error) {
	if name == "" {
		return syscall.SIGTERM, nil
	}
	if n, err := strconv.Atoi(name); err == nil {
		if n > 0 && n <= signalMax {
			return syscall.Signal(n), nil
		}
		return 0, fmt.Errorf("%w (it is %.40q)", ErrStopSignal, name)
	}
	full := "SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG")
	if s := unix.SignalNum(full); s > 0 {
		return s, nil
	}
	for _, base := range []struct {
		name   string
		number int
	}{{"SIGRTMIN", signalMin}, {"SIGRTMAX", signalMax}} {
		rest, ok := strings.CutPrefix(full, base.name)
		if !ok {
			continue
		}
		offset, err := 0, error(nil)
		if rest != "" {
			offset, err = strconv.Atoi(rest) // accepts "+3" and "-3"
		}
		n := base.number + offset
		if err == nil && (rest == "" || rest[0] == '+' || rest[0] == '-') && n >= signalMin && n <= signalMax {
			return syscall.Signal(n), nil
		}
	}
	return 0, fmt.Errorf("%w (it is %.40q)", ErrStopSignal, name)
}

// SignalNumber returns the stop signal of a container that was started.
func SignalNumber(name string) syscall.Signal {
	if s, err := StopSignal(name); err == nil {
		return s
	}
	return syscall.SIGTERM // for an image that an earlier version of rik started
}
