package crdpuller_test

import (
	"context"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/testkit/kube"
)

// seen waits for the next value on the channel.
func seen(t *testing.T, changes <-chan struct{}, what string) {
	t.Helper()
	select {
	case _, ok := <-changes:
		if !ok {
			t.Fatalf("%s: the channel is closed", what)
		}
	case <-time.After(kube.Timeout):
		t.Fatalf("%s: no change was reported", what)
	}
}

// quiet drains the channel, because a server continues to change for a while.
func quiet(changes <-chan struct{}) {
	for {
		select {
		case <-changes:
		case <-time.After(2 * time.Second):
			return
		}
	}
}

func TestChangesReportNewTypes(t *testing.T) {
	c := kube.Shared(t).Way(t)
	ctx, cancel := context.WithCancel(t.Context())
	changes := newPuller(t, c.Rest()).Changes(ctx)
	seen(t, changes, "watching begins")
	quiet(changes)
	install(t, c, crdOf("news", "changes.example.dev", "News", anyObject()))
	seen(t, changes, "a CRD was made")
	quiet(changes)
	brokenAPIService(t, c, "v1", "changed.example.dev")
	seen(t, changes, "an APIService was made")
	c.Cut()
	quiet(changes)
	c.Mend(t)
	install(t, c, crdOf("olds", "changes.example.dev", "Olds", anyObject()))
	seen(t, changes, "a CRD was made after an outage")
	cancel()
	for range changes { // until it is closed
	}
}

func TestChangesWhereWatchingIsForbidden(t *testing.T) {
	config := kube.Shared(t).Rest()
	config.Impersonate = rest.ImpersonationConfig{UserName: "nobody-special"}
	ctx, cancel := context.WithCancel(t.Context())
	changes := newPuller(t, config).Changes(ctx)
	select {
	case <-changes:
		t.Error("a change was reported")
	case <-time.After(time.Second):
	}
	cancel()
	for range changes { // until it is closed
	}
}
