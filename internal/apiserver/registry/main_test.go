package registry_test

import (
	"fmt"
	"os"
	"testing"

	"rik.dev/rik/internal/apiserver/registry/registrytest"
)

// etcd is for tests of only the stores. Tests of requests are in package apiserver.
var etcd *registrytest.Server

func TestMain(m *testing.M) {
	var err error
	if etcd, err = registrytest.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "starting etcd:", err)
		os.Exit(1)
	}
	code := m.Run()
	if err := etcd.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stopping etcd:", err)
		code = 1
	}
	os.Exit(code)
}
