package clierror

import (
	"strings"
	"testing"
)

// TestAnErrorOfTheServersOwnIsNoConnectionOfOurs checks a server error about a refused
// connection. That connection is one of the server, not of rikctl.
func TestAnErrorOfTheServersOwnIsNoConnectionOfOurs(t *testing.T) {
	t.Parallel()
	const server = "https://127.0.0.1:5000"
	for _, text := range []string{
		"Error from server: rpc error: code = Unknown desc = dial tcp 10.0.0.5:5432: connect: connection refused",
		"Error from server: lookup db: no such host",
		"Error from server: read tcp 10.0.0.5:5432: i/o timeout",
		"Error from server (ServiceUnavailable): the cluster's datastore did not answer",
	} {
		o := outcomeOfText(text, ExitError, server)
		if strings.Contains(o.Next, "nothing listens") || strings.Contains(o.Next, "check that") || strings.Contains(o.Next, "not known") {
			t.Errorf("%q leads to %q", text, o.Next)
		}
		if o.Next == "" {
			t.Errorf("%q leads to nothing", text)
		}
	}
	if o := outcomeOfText("dial tcp 127.0.0.1:5000: connect: connection refused", ExitError, server); !strings.Contains(o.Next, "nothing listens on "+server) {
		t.Errorf("a refused connection of ours leads to %q", o.Next)
	}
}
