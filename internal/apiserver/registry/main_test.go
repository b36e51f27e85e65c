package registry_test

import (
	"fmt"
	"os"
	"testing"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/apiserver/registry/registrytest"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/testkit/apitest"
)

// etcd is for tests of the stores alone; those of requests use apitest.Shared.
var etcd *registrytest.Server

// echo answers logs with one line, commands with what they are told, and holds
// whatever it is told to hold.
var echo = &registrytest.Node{
	Opened: make(chan *nodev1.OpenStream, 64),
	Script: func(s *registrytest.FarEnd, open *nodev1.OpenStream) *nodev1.StreamData {
		if open.GetLog() != nil {
			s.Out("a line\n")
			return &nodev1.StreamData{}
		}
		if open.GetHold() != nil {
			return &nodev1.StreamData{}
		}
		for {
			d := s.Read()
			if d == nil {
				return nil
			}
			s.Out(string(d.GetData()))
			if d.GetEndOfInput() {
				return &nodev1.StreamData{ExitCode: 7}
			}
		}
	},
}

func TestMain(m *testing.M) {
	var err error
	if etcd, err = registrytest.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "starting etcd:", err)
		os.Exit(1)
	}
	code := apitest.RunMain(m, func(c *apiserver.Config) { c.Sessions = echo })
	if err := etcd.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stopping etcd:", err)
		code = 1
	}
	os.Exit(code)
}
