package audit

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	authnv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"pgregory.net/rapid"
)

func event(by, verb, group, resource, subresource string, code int32) *auditinternal.Event {
	e := &auditinternal.Event{
		Level: auditinternal.LevelMetadata, Verb: verb, RequestURI: "/x", SourceIPs: []string{"192.0.2.1"},
		ResponseStatus: &metav1.Status{Code: code},
	}
	e.User.Username = by
	if resource != "" {
		e.ObjectRef = &auditinternal.ObjectReference{APIGroup: group, Resource: resource, Subresource: subresource}
	}
	return e
}

func TestSortOut(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		event *auditinternal.Event
		want  class
	}{
		"a change":                       {event("ann", "create", "rik.dev", "workloads", "", 201), recorded},
		"a change of the published API":  {event("ann", "post", "", "", "", 200), recorded},
		"an ordinary read":               {event("ann", "list", "rik.dev", "workloads", "", 200), dropped},
		"a denied read":                  {event("ann", "list", "rik.dev", "workloads", "", 403), denied},
		"a denied change":                {event("ann", "create", "rik.dev", "workloads", "", 403), denied},
		"a denied read of the published": {event("ann", "get", "", "", "", 403), denied},
		"a log":                          {event("ann", "get", "rik.dev", "instances", "log", 200), recorded},
		"a command":                      {event("ann", "get", "rik.dev", "instances", "exec", 101), recorded},
		"a forwarded port":               {event("ann", "create", "rik.dev", "instances", "portforward", 101), recorded},
		"a secret":                       {event("ann", "get", "", "secrets", "", 200), recorded},
		"an event":                       {event("ann", "create", "", "events", "", 201), dropped},
		"a denied event":                 {event("ann", "create", "", "events", "", 403), denied},
		"a lease":                        {event("ann", "update", "coordination.k8s.io", "leases", "", 200), dropped},
		"a question of one's own rights": {event("ann", "create", "authorization.k8s.io", "selfsubjectaccessreviews", "", 201), dropped},
		"no credential":                  {event("", "get", "", "secrets", "", 401), fromUnauthenticated},
		"a health check":                 {event(user.Anonymous, "get", "", "", "", 200), dropped},
		"a refused anonymous request":    {event(user.Anonymous, "get", "", "", "", 403), fromUnauthenticated},
		"an anonymous post":              {event(user.Anonymous, "post", "", "", "", 200), fromUnauthenticated},
		"a node that joins":              {event("rik:join-token:1", "join", "rik.dev", "nodes", "", 200), recorded},
		"a node that may not join":       {event("rik:join-token:1", "join", "rik.dev", "nodes", "", 409), denied},
		"a bad join token":               {event("", "join", "rik.dev", "nodes", "", 401), fromUnauthenticated},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := sortOut(tc.event); got != tc.want {
				t.Errorf("sortOut() = %d, want %d", got, tc.want)
			}
		})
	}
}

// largestAuthenticated and largestUnauthenticated are the sizes of entries in which every part has its maximum
// length. JSON needs up to six bytes for one byte.
const largestAuthenticated, largestUnauthenticated = 512 << 10, 64 << 10

// TestEntriesAreBounded: for any client input, an entry has a bounded size and is valid. The
// event of the API server is not changed.
func TestEntriesAreBounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := func(label string) string {
			return strings.Repeat(rapid.SampledFrom([]string{"a", "é", "\x00", "\xff", "世", `"`}).Draw(t, label), rapid.SampledFrom([]int{0, 1, 127, 128, 129, 511, 512, 513, 20_000}).Draw(t, label+" length"))
		}
		list := func(label string) []string {
			out := make([]string, rapid.SampledFrom([]int{0, 1, 4, 5, 40}).Draw(t, label+" items"))
			for i := range out {
				out[i] = shorten(text(label), 1000)
			}
			return out
		}
		identity := func(label string) authnv1.UserInfo {
			u := authnv1.UserInfo{Username: text(label), UID: text(label), Groups: list(label), Extra: map[string]authnv1.ExtraValue{}}
			values := list(label)
			for i, key := range list(label) {
				u.Extra[fmt.Sprint(i, key)] = values
			}
			return u
		}
		impersonated := identity("impersonated")
		e := &auditinternal.Event{
			Level: auditinternal.LevelMetadata, RequestURI: text("uri"), Verb: text("verb"), UserAgent: text("agent"), User: identity("user"),
			ImpersonatedUser: &impersonated, AuthenticationMetadata: &auditinternal.AuthenticationMetadata{ImpersonationConstraint: text("constraint")},
			SourceIPs: list("addresses"), ObjectRef: &auditinternal.ObjectReference{Namespace: text("namespace"), Name: text("name"), Subresource: text("subresource")},
			ResponseStatus: &metav1.Status{Message: text("message"), Details: &metav1.StatusDetails{Name: text("detail")}},
			Annotations:    map[string]string{"a": text("annotation"), text("key"): "b"},
		}
		before := e.DeepCopy()
		for b, largest := range map[bounds]int{knownBounds: largestAuthenticated, unauthenticatedBounds: largestUnauthenticated} {
			out := cut(e, b, 3)
			line, err := runtime.Encode(audit.Codecs.LegacyCodec(auditv1.SchemeGroupVersion), out)
			if err != nil {
				t.Fatal(err)
			}
			if len(line) > largest {
				t.Fatalf("an entry has %d bytes, want at most %d", len(line), largest)
			}
			if len(e.SourceIPs) > 0 && sourceOf(out) != shorten(sourceOf(e), b.text) {
				t.Fatalf("source = %q, want %q", sourceOf(out), sourceOf(e))
			}
			if utf8.ValidString(e.RequestURI) && !utf8.ValidString(out.RequestURI) {
				t.Fatal("the URI was cut within a character")
			}
		}
		if before.RequestURI != e.RequestURI || len(before.SourceIPs) != len(e.SourceIPs) || before.ObjectRef.Name != e.ObjectRef.Name || e.ResponseStatus.Details == nil {
			t.Fatal("the event was changed")
		}
	})
}

func lines(t *testing.T, path string) []auditv1.Event {
	t.Helper()
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []auditv1.Event
	scanner := bufio.NewScanner(f)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		var e auditv1.Event
		if err := json.Unmarshal(scanner.Bytes(), &e); err != nil {
			t.Fatalf("line %q: %v", scanner.Text(), err)
		}
		out = append(out, e)
	}
	return out
}

func TestUnauthenticatedRequestsAreSeparateAndFew(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	l := Open(path)
	t.Cleanup(func() { _ = l.Close() })
	now := time.Now()
	l.unauthenticatedLimit = newLimiter(unauthenticatedRates, func() time.Time { return now })
	l.process(event("ann", "create", "", "configmaps", "", 201))
	for range 5000 {
		e := event("", "get", "", "secrets", "", http.StatusUnauthorized)
		e.RequestURI = "/api/v1/secrets?x=" + strings.Repeat("x", 60_000)
		l.process(e)
	}
	if got := lines(t, path); len(got) != 1 || got[0].User.Username != "ann" {
		t.Errorf("the log has %d entries, want the user's one", len(got))
	}
	if got := len(lines(t, UnauthenticatedFile(path))); got != unauthenticatedRates.burstEach {
		t.Errorf("%d requests without a credential are recorded, want %d", got, unauthenticatedRates.burstEach)
	}
	// Another address is still recorded, and the first one is recorded again later.
	other := event("", "get", "", "secrets", "", http.StatusUnauthorized)
	other.SourceIPs = []string{"192.0.2.2"}
	l.process(other)
	now = now.Add(time.Minute)
	l.process(event("", "get", "", "secrets", "", http.StatusUnauthorized))
	got := lines(t, UnauthenticatedFile(path))
	if len(got) != unauthenticatedRates.burstEach+2 {
		t.Fatalf("%d requests without a credential are recorded, want %d", len(got), unauthenticatedRates.burstEach+2)
	}
	if last := got[len(got)-1]; last.Annotations[AnnotationNotRecorded] != fmt.Sprint(5000-unauthenticatedRates.burstEach) {
		t.Errorf("annotations of the last = %v, want the number of those left out", last.Annotations)
	}
}

func TestUnauthenticatedRequestsOfManyAddressesAreFew(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := newLimiter(unauthenticatedRates, func() time.Time { return now })
	taken := 0
	for i := range 10 * maxSources {
		if _, ok := l.take(fmt.Sprint("address ", i)); ok {
			taken++
		}
	}
	if taken != unauthenticatedRates.burstAll || l.sources.Len() > maxSources {
		t.Errorf("%d entries and %d sources in memory, want %d and at most %d", taken, l.sources.Len(), unauthenticatedRates.burstAll, maxSources)
	}
}

func TestDeniedRequestsOfAUserAreFew(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	l := Open(path)
	t.Cleanup(func() { _ = l.Close() })
	now := time.Now()
	l.deniedLimit = newLimiter(deniedRates, func() time.Time { return now })
	for range 1000 {
		l.process(event("mallory", "get", "", "secrets", "", http.StatusForbidden))
	}
	l.process(event("ann", "get", "", "secrets", "", http.StatusForbidden))
	if got := len(lines(t, path)); got != deniedRates.burstEach+1 {
		t.Errorf("%d entries, want %d", got, deniedRates.burstEach+1)
	}
}

// TestAFileThatIsGoneIsMadeAgain: the file is created again after it was deleted by hand, or
// moved away by logrotate.
func TestAFileThatIsGoneIsMadeAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	l := Open(path)
	t.Cleanup(func() { _ = l.Close() })
	l.process(event("a", "create", "", "configmaps", "", 201))
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	l.process(event("b", "create", "", "configmaps", "", 201))
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	l.process(event("c", "create", "", "configmaps", "", 201))
	l.process(event("d", "create", "", "configmaps", "", 201))
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := lines(t, path); len(got) != 2 || info.Mode().Perm() != 0o600 {
		t.Errorf("the new file has %d entries and mode %o, want 2 and 600", len(got), info.Mode().Perm())
	}
	if got := lines(t, path+".moved"); len(got) != 1 || got[0].User.Username != "b" {
		t.Errorf("the moved file has %v, want one entry of b", got)
	}
}

func TestRotationKeepsAFew(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := newFile(filepath.Join(dir, "audit.log"), 1, 2)
	t.Cleanup(func() { _ = f.Close() })
	for range 60 {
		if _, err := f.Write([]byte(strings.Repeat("x", 100_000) + "\n")); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) < 2 {
		t.Errorf("%d files, want it to be rotated", len(entries))
	}
}

func TestRecord(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	l := Open(path)
	t.Cleanup(func() { _ = l.Close() })
	l.Record(Entry{Verb: "join", Resource: "nodes", Name: "n1", User: "rik:join-token:abc", Source: "192.0.2.1", Code: http.StatusOK, Annotations: map[string]string{"a": "b"}})
	l.Record(Entry{Verb: "join", Resource: "nodes", Name: "n2", Source: "192.0.2.1", Code: http.StatusUnauthorized})
	var none *Log
	none.Record(Entry{})
	got := lines(t, path)
	if len(got) != 1 || got[0].Verb != "join" || got[0].ObjectRef.Name != "n1" || got[0].SourceIPs[0] != "192.0.2.1" || got[0].Annotations["a"] != "b" {
		t.Errorf("the log has %+v", got)
	}
	if got := lines(t, UnauthenticatedFile(path)); len(got) != 1 || got[0].ObjectRef.Name != "n2" {
		t.Errorf("the file of unauthenticated requests has %+v", got)
	}
}
