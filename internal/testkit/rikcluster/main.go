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

// timeToRemove is left of the time that the tests have, for a test that waits to fail and to
// remove what it made.
const timeToRemove = Timeout + time.Minute

// Main runs the tests of a package in a network namespace of their own, so that
// clusters can use the usual ports whatever else the machine serves, and with the umask of
// a hardened machine, which must not keep users in containers from their files. It replaces
// the process by itself, there. Where the tests may not be root it runs them as
// they are: each then says that it was left out.
//
// The tests that take longest, the longest first, begin before the others; see [Alone].
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

// arrange has -parallel count the tests in processes of their own. Of the parents of these,
// which only wait, there are as many as there are.
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
