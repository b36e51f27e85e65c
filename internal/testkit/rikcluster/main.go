package rikcluster

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"rik.dev/rik/internal/testkit/privileged"
)

const inside = "RIK_E2E_NETNS"

// Main runs the tests of a package in a network namespace of their own, so that
// clusters can use the usual ports whatever else the machine serves. It replaces
// the process by itself, there. Where the tests may not be root it runs them as
// they are: each then says that it was left out.
func Main(m *testing.M) {
	if !privileged.Asked() || os.Getenv(inside) != "" {
		flag.Parse()
		asked := false
		flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "test.parallel" })
		if !asked {
			_ = flag.Set("test.parallel", strconv.Itoa(sideBySide))
		}
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
	args := append([]string{"unshare", "--net", "--", "/bin/sh", "-c", `ip link set lo up && exec "$0" "$@"`, self}, os.Args[1:]...)
	err = syscall.Exec(unshare, args, append(os.Environ(), inside+"=1"))
	fmt.Fprintf(os.Stderr, "entering a network namespace: %v\n", err)
	os.Exit(1)
}
