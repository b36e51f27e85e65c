package rikctl

import (
	"context"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/testkit/served"
)

func TestFollowOfKind(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.do(t, "deploy", "-f", s.file(t, deploymentFile)).check(t, clierror.ExitOK)
	s.workload(t, "web", "")
	follower := s.start(t, "-n", s.namespace, "get", "apps", "--watch")
	until := func(want ...string) {
		t.Helper()
		err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, served.Timeout, true, func(context.Context) (bool, error) {
			rest := follower.out.String()
			for _, w := range want {
				_, after, found := strings.Cut(rest, w)
				if !found {
					return false, nil
				}
				rest = after
			}
			return true, nil
		})
		if err != nil {
			t.Fatalf("printed %q, want %q in it: %v", follower.out.String(), want, err)
		}
	}
	until("NAME", "STATUS", "nginx", "Pending")
	s.do(t, "create", "instance", "-w", "nginx", "--name", "nginx-one").check(t, clierror.ExitOK)
	s.runningOn(t, "nginx-one", s.node(t))
	until("Pending", "nginx", "Running")
	follower.interrupt()
	if code := <-follower.ended; code != clierror.ExitInterrupted {
		t.Errorf("the interrupted command ended with code %d: %s", code, follower.err)
	}
	if text := follower.out.String(); strings.Count(text, "NAME") != 1 || strings.Contains(text, "web") {
		t.Errorf("printed %q, want one line of headings and no Pod", text)
	}
	s.do(t, "get", "apps", "-w", "-o", "json").check(t, clierror.ExitUsage, "-o json")
	s.do(t, "get", "app", "nobody", "-w").check(t, clierror.ExitNotFound, "nobody")
}
