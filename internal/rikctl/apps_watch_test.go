package rikctl

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/scheme"
	"rik.dev/rik/internal/testkit/apiprocess"
	"rik.dev/rik/internal/testkit/output"
	"rik.dev/rik/internal/testkit/served"
)

func TestFollowOfKind(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.do(t, "deploy", "-f", s.file(t, deploymentFile)).check(t, clierror.ExitOK)
	s.workload(t, "web", "")
	c, err := client.NewWithWatch(apiprocess.Shared(t).Config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &output.Buffer{}
	followed := make(chan error, 1)
	go func() {
		follower := &tool{&access.Factory{Streams: genericiooptions.IOStreams{Out: out, ErrOut: out}}}
		followed <- follower.followOfKind(ctx, c, rikv1alpha1.KindApp, nil, style{namespace: s.namespace}, client.InNamespace(s.namespace))
	}()
	until := func(want ...string) {
		t.Helper()
		err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, served.Timeout, true, func(context.Context) (bool, error) {
			rest := out.String()
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
			t.Fatalf("printed %q, want %q in it: %v", out.String(), want, err)
		}
	}
	until("NAME", "STATUS", "nginx", "Pending")
	s.do(t, "create", "instance", "-w", "nginx", "--name", "nginx-one").check(t, clierror.ExitOK)
	s.runningOn(t, "nginx-one", s.node(t))
	until("Pending", "nginx", "Running")
	cancel()
	if err := <-followed; !errors.Is(err, context.Canceled) {
		t.Errorf("followOfKind() = %v", err)
	}
	if text := out.String(); strings.Count(text, "NAME") != 1 || strings.Contains(text, "web") {
		t.Errorf("printed %q, want one line of headings and no Pod", text)
	}
	s.do(t, "get", "apps", "-w", "-o", "json").check(t, clierror.ExitUsage, "-o json")
	s.do(t, "get", "app", "nobody", "-w").check(t, clierror.ExitNotFound, "nobody")
}
