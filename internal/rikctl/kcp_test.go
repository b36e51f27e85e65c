package rikctl

import (
	"errors"
	"sync"
	"testing"

	"rik.dev/rik/internal/testkit/kcptest"
	"rik.dev/rik/internal/testkit/scratch"
)

// oneKCP is a kcp that two tests share: one works with Clusters, the other with imported types.
var oneKCP struct {
	sync.Mutex
	server *kcptest.Server
	dir    *scratch.Dir
}

func sharedKCP(t *testing.T) *kcptest.Server {
	t.Helper()
	oneKCP.Lock()
	defer oneKCP.Unlock()
	if oneKCP.server != nil {
		return oneKCP.server
	}
	dir, err := scratch.New("rik-rikctl-")
	if err != nil {
		t.Fatal(err)
	}
	server, err := kcptest.Run(dir.Path)
	if err != nil {
		t.Fatalf("starting a kcp: %v", errors.Join(err, dir.Remove()))
	}
	oneKCP.server, oneKCP.dir = server, dir
	return server
}

// stopKCP stops the shared kcp if one was started.
func stopKCP() error {
	oneKCP.Lock()
	defer oneKCP.Unlock()
	if oneKCP.server == nil {
		return nil
	}
	return errors.Join(oneKCP.server.Stop(), oneKCP.dir.Remove())
}
