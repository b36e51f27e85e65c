package clierror

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/config"
)

//prose:foreign
func TestOutcomeOf(t *testing.T) {
	t.Parallel()
	workloads := schema.GroupResource{Group: "rik.dev", Resource: "workloads"}
	tests := []struct {
		name string
		err  error
		code int
		text string
		next string
	}{
		{"a command's own code", CodeError{42}, 42, "", ""},
		{"usage", cmdline.New("rikctl get", errors.New("unknown flag: --x")), ExitUsage, "unknown flag", "rikctl get --help"},
		{"no configuration", &config.MissingError{Looked: []string{"--config: not set"}}, ExitUsage, "looked at", "rik server"},
		{"denied configuration", &config.DeniedError{Path: "/p", Target: "/home/a/.rik/config.yaml"}, ExitUsage, "permission denied", "sudo install"},
		{"not found", fmt.Errorf("x: %w", apierrors.NewNotFound(workloads, "web")), ExitNotFound, `workloads.rik.dev "web" not found`, ""},
		{"exists", apierrors.NewAlreadyExists(workloads, "web"), ExitConflict, "already exists", ""},
		{"changed meanwhile", apierrors.NewConflict(workloads, "web", errors.New("changed")), ExitConflict, "changed", ""},
		{"invalid", apierrors.NewInvalid(schema.GroupKind{Group: "rik.dev", Kind: "Workload"}, "web", nil), ExitInvalid, "is invalid", ""},
		{"bad request", apierrors.NewBadRequest(`unknown field "spec.foo"`), ExitInvalid, "spec.foo", ""},
		{"forbidden", apierrors.NewForbidden(workloads, "web", errors.New("no")), ExitDenied, "forbidden", "auth can-i"},
		{"unauthorized", apierrors.NewUnauthorized("who"), ExitDenied, "who", "https://s:5000 does not accept"},
		{"busy", apierrors.NewServiceUnavailable("starting"), ExitUnreachable, "starting", "try again"},
		{"timed out", TimeoutError{"node n to be drained"}, ExitUnreachable, "timed out waiting for node n", ""},
		{"ended by the user", fmt.Errorf("x: %w", context.Canceled), ExitInterrupted, "", ""},
		{"deadline", fmt.Errorf("x: %w", context.DeadlineExceeded), ExitUnreachable, "deadline", ""},
		{"kubectl: refused", &FatalError{"The connection to the server s:5000 was refused - did you specify the right host or port?\n", 1}, ExitUnreachable, "refused", "sudo rik server"},
		{"kubectl: not found", &FatalError{`Error from server (NotFound): workloads.rik.dev "web" not found`, 1}, ExitNotFound, "not found", ""},
		{"kubectl: several", &FatalError{"Error from server (AlreadyExists): a\nError from server (NotFound): b\n", 1}, ExitConflict, "NotFound", ""},
		{"kubectl: no type", &FatalError{`error: the server doesn't have a resource type "workloadz"`, 1}, ExitNotFound, "workloadz", "api-resources"},
		{"kubectl: undeclared field", &FatalError{"Error from server: failed to create typed patch object: .spec.foo: field not declared in schema", 1}, ExitInvalid, ".spec.foo", ""},
		{"kubectl: usage", &FatalError{"error: resource(s) were provided\nSee 'rikctl get -h' for help and examples", 1}, ExitUsage, "resource(s)", ""},
		{"kubectl: wait", &FatalError{"error: timed out waiting for the condition on instances/a", 1}, ExitUnreachable, "timed out", ""},
		{"exec: forbidden", errors.New(`unable to upgrade connection: instances.rik.dev "a" is forbidden: User "b" cannot create`), ExitDenied, "forbidden", "auth can-i"},
		{"exec: no node", errors.New("unable to upgrade connection: the node is not connected"), ExitUnreachable, "not connected", "get nodes"},
		{"kubectl: login", &FatalError{"error: You must be logged in to the server (Unauthorized)", 1}, ExitDenied, "logged in", "https://s:5000 does not accept"},
		{"kubectl: certificate", &FatalError{"Unable to connect to the server: tls: failed to verify certificate: x509: certificate signed by unknown authority", 1}, ExitUnreachable, "x509", "authority in the configuration"},
		{"kubectl: published form", &FatalError{`error: resource mapping not found for name: "" namespace: "" from "w.json": no matches for kind "Pod" in version "v0"`, 1}, ExitInvalid, "no matches", "create workload -f"},
		{"kubectl: http on the TLS port", &FatalError{"Error from server (BadRequest): the server rejected our request for an unknown reason", 1}, ExitUsage, "rejected", "https://s:5000 is not the API server: check that cluster.server begins with https://"},
		{"http on the TLS port", apierrors.NewBadRequest("the server rejected our request for an unknown reason"), ExitUsage, "rejected", "begins with https://"},
		{"kubectl: another's field", &FatalError{"error: Apply failed with 1 conflict: conflict with \"rikctl\" with subresource \"scale\" using rik.dev/v1alpha1: .spec.replicas", 1}, ExitConflict, ".spec.replicas", "--force-conflicts"},
		{"kubectl: silent", &FatalError{"", 1}, ExitError, "", ""},
		{"kubectl: differences", &FatalError{"exit status 1", 1}, ExitError, "exit status 1", ""},
		{"anything else", errors.New("odd"), ExitError, "error: odd", ""},
		{"with advice", AdvisedError{errors.New("odd"), "do this"}, ExitError, "odd", "do this"},
		{"advice on a not found", AdvisedError{apierrors.NewNotFound(workloads, "web"), "look"}, ExitNotFound, "not found", "look"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := OutcomeOf(tc.err, "https://s:5000")
			if got.Code != tc.code || !strings.Contains(got.Text, tc.text) || !strings.Contains(got.Next, tc.next) {
				t.Errorf("OutcomeOf(%v) = %d %q next %q; want %d, %q, next %q", tc.err, got.Code, got.Text, got.Next, tc.code, tc.text, tc.next)
			}
			if tc.text == "" && got.Text != "" {
				t.Errorf("OutcomeOf(%v) says %q, want silence", tc.err, got.Text)
			}
		})
	}
}

func TestAboveOne(t *testing.T) {
	t.Parallel()
	if o := OutcomeOf(AboveOne{errors.New("odd")}, ""); o.Code != ExitUsage || o.Text != "error: odd" {
		t.Errorf("judge = %+v", o)
	}
	if o := OutcomeOf(AboveOne{InvalidError{"web.yaml", errors.New("odd")}}, ""); o.Code != ExitInvalid {
		t.Errorf("judge = %+v", o)
	}
	if o := OutcomeOf(AdvisedError{ErrNoKCP, NextForKCP}, ""); o.Code != ExitNotFound || o.Next != NextForKCP {
		t.Errorf("judge = %+v", o)
	}
}
