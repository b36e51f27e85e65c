package rikcluster

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"rik.dev/rik/internal/testkit/interrupt"
	"rik.dev/rik/internal/testkit/privileged"
)

const inside = "RIK_E2E_NETNS"

// timeToRemove is the part of the tests' -timeout that is reserved for waiting tests to fail and
// to remove what they created.
const timeToRemove = Timeout + time.Minute

// Main runs the tests of a package in a new network namespace, so that clusters can use the
// standard ports whatever runs on the machine. It sets the umask of a hardened machine, which
// must not prevent users in containers from reading their files. It replaces the process by
// itself in that namespace. If privileged tests are not requested, it runs the tests without
// that; each then reports that it was skipped.
//
// The longest tests, in descending order, begin before the others; see [Alone].
func Main(m *testing.M, longest ...string) {
	if !privileged.Asked() || os.Getenv(inside) != "" {
		if err := arrange(longest); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		interrupt.Handle()
		interrupt.HandleTimeout(timeToRemove)
		os.Exit(m.Run())
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		fmt.Fprintf(os.Stderr, "looking for unshare (package util-linux): %v\n", err)
		os.Exit(1)
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintf(os.Stderr, "finding the test program: %v\n", err)
		os.Exit(1)
	}
	args := append([]string{"unshare", "--net", "--", "/bin/sh", "-c", `umask 077 && ip link set lo up && exec "$0" "$@"`, self}, os.Args[1:]...)
	err = syscall.Exec(unshare, args, append(os.Environ(), inside+"=1"))
	fmt.Fprintf(os.Stderr, "entering a network namespace: %v\n", err)
	os.Exit(1)
}

// arrange makes -parallel limit the tests in separate processes. Their parent tests only wait,
// so their number is not limited.
func arrange(longest []string) error {
	flag.Parse()
	places := sideBySide
	var err error
	flag.Visit(func(f *flag.Flag) {
		if f.Name == "test.parallel" {
			places, err = strconv.Atoi(f.Value.String())
		}
	})
	queue = newTurns(places, longest)
	return errors.Join(err, flag.Set("test.parallel", "1000"))
}
