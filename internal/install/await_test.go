package install

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAwait(t *testing.T) {
	t.Parallel()
	old := UnitState{Invocation: "1", Active: "active", Sub: "running", Text: "joined s as node n"}
	starts := UnitState{Invocation: "2", Active: "activating", Sub: "start", Text: "starting: waiting for the datastore"}
	joins := UnitState{Invocation: "2", Active: "active", Sub: "running", Text: "joining s as node n"}
	joined := UnitState{Invocation: "2", Active: "active", Sub: "running", Text: "joined s as node n"}
	for name, tc := range map[string]struct {
		states  []UnitState
		joined  string
		timeout time.Duration
		want    []string
		err     string
	}{
		"a server": {[]UnitState{old, starts, joins}, "", 0, []string{"waiting for u for 0s: starting: waiting for the datastore"}, ""},
		"an upgraded node whose old run had joined": {[]UnitState{old, joins, joined}, "joined ", time.Minute, []string{"waiting for u for 0s: joining s as node n"}, ""},
		"a service that ends":                       {[]UnitState{starts, {Invocation: "2", Active: "activating", Sub: "auto-restart"}}, "", 0, []string{"waiting for u for 0s: starting: waiting for the datastore"}, "u ended during its start; see: journalctl -u u -n 50"},
		"a failed unit":                             {[]UnitState{{Invocation: "2", Active: "failed", Sub: "failed"}}, "", 0, nil, "u ended"},
		"a node that cannot join": {[]UnitState{joins}, "joined ", 15 * time.Second,
			[]string{"waiting for u for 0s: joining s as node n", "waiting for u for 10s: joining s as node n"}, "not ready yet after 15s: u: joining s as node n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var said []string
				o := Options{Joined: tc.joined, Timeout: tc.timeout, Progress: func(text string) { said = append(said, text) }}
				err := o.await(t.Context(), &machine{states: tc.states}, "u", "1")
				if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
					t.Errorf("await() = %v, want an error with %q", err, tc.err)
				}
				if late := strings.HasPrefix(tc.err, "not ready"); errors.Is(err, ErrNotReady) != late {
					t.Errorf("await() = %v, ErrNotReady wanted: %v", err, late)
				}
				if diff := cmp.Diff(tc.want, said); diff != "" {
					t.Errorf("said (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestParseState(t *testing.T) {
	t.Parallel()
	out := "ActiveState=active\nSubState=running\nStatusText=the API answers at https://x:5000/?a=b\nInvocationID=2f\n"
	want := UnitState{Invocation: "2f", Active: "active", Sub: "running", Text: "the API answers at https://x:5000/?a=b"}
	if got := parseState(out); got != want {
		t.Errorf("parseState() = %+v, want %+v", got, want)
	}
}
