package apiserver_test

import (
	"os"
	"testing"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/apiserver/registry/registrytest"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/testkit/apitest"
)

func TestMain(m *testing.M) {
	os.Exit(apitest.RunMain(m, func(c *apiserver.Config) { c.Sessions = echo }))
}

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
