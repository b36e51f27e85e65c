package syncerauth_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/testkit/kcpinside"
	"rik.dev/rik/internal/testkit/served"
)

// eventOf returns an event in the form of one of the two groups.
func eventOf(group, namespace, reference string) (path, document string) {
	if group == "" {
		return "/api/v1/namespaces/" + namespace + "/events", fmt.Sprintf(
			`{"apiVersion":"v1","kind":"Event","metadata":{"generateName":"e-"},"involvedObject":%s,"reason":"Refused"}`, reference)
	}
	return "/apis/events.k8s.io/v1/namespaces/" + namespace + "/events", fmt.Sprintf(
		`{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"generateName":"e-"},"eventTime":"2026-01-01T00:00:00.000000Z","type":"Warning","action":"Carry",`+
			`"reportingController":"rik-syncer","reportingInstance":"east","regarding":%s,"reason":"Refused"}`, reference)
}

// TestSyncerReportsItsOwnObjectsOnly: a syncer can create events about objects that are sent to its
// cluster. It cannot create events about other objects, or in other namespaces.
func TestSyncerReportsItsOwnObjectsOnly(t *testing.T) {
	t.Parallel()
	s := kcpinside.Shared(t).Server
	widgets(t, s)
	admin := newUser(t, s, s.Config)
	east := admin.register("east")
	syncer := newUser(t, s, s.AsSyncer(t, "east"))
	here, elsewhere := s.Namespace(t), s.Namespace(t)
	configMap, widget, globe := samples[0], samples[10], samples[11]
	reference := func(sample sample, namespace, name string, uid types.UID) string {
		return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"namespace":%q,"name":%q,"uid":%q}`, sample.resource.GroupVersion(), sample.kind, namespace, name, uid)
	}
	mine := admin.make(configMap, here, "mine", sentEast)
	theirs := admin.make(configMap, here, "theirs", sentWest)
	nobodys := admin.make(configMap, elsewhere, "nobodys", ``)
	for name, tc := range map[string]struct {
		namespace, reference string
		want                 int
	}{
		"its own":                     {here, reference(configMap, here, "mine", mine), 201},
		"its own of a defined type":   {here, reference(widget, here, "mine", admin.make(widget, here, "mine", sentEast)), 201},
		"its own outside namespaces":  {"default", reference(globe, "", "mine", admin.make(globe, "", "mine", sentEast)), 201},
		"another cluster's":           {here, reference(configMap, here, "theirs", theirs), 403},
		"nobody's":                    {elsewhere, reference(configMap, elsewhere, "nobodys", nobodys), 403},
		"one that is not there":       {here, reference(configMap, here, "absent", mine), 403},
		"another of its own's name":   {here, reference(configMap, here, "mine", theirs), 403},
		"its own under another name":  {here, reference(configMap, here, "theirs", mine), 403},
		"its own, without the UID":    {here, reference(configMap, here, "mine", ""), 403},
		"of an unknown kind":          {here, `{"apiVersion":"v1","kind":"Thing","namespace":"` + here + `","name":"mine","uid":"1"}`, 403},
		"of an unknown group":         {here, `{"apiVersion":"nowhere.dev/v1","kind":"Thing","namespace":"` + here + `","name":"mine","uid":"1"}`, 403},
		"of a strange version":        {here, `{"apiVersion":"a/b/c","kind":"Thing","namespace":"` + here + `","name":"mine","uid":"1"}`, 403},
		"the namespace":               {here, reference(samples[5], "", here, "1"), 422},
		"a cluster-scoped type in it": {here, reference(globe, here, "mine", mine), 403},
		"its Cluster":                 {"default", reference(clusterSample, "", "east", east), 403},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := syncer
			u.t = t
			for _, group := range []string{"", "events.k8s.io"} {
				path, document := eventOf(group, tc.namespace, tc.reference)
				if code, body := u.ask("POST", path, "application/json", document); code != tc.want {
					t.Errorf("POST %s %s = %d %s, want %d", path, document, code, body, tc.want)
				}
			}
		})
	}
}

// TestSyncerEndsWithItsCluster: credentials are for one Cluster. After its deletion they are
// invalid, even if another Cluster has its name, and open watches end.
func TestSyncerEndsWithItsCluster(t *testing.T) {
	t.Parallel()
	s := kcpinside.Shared(t).Server
	const selBrief = "labelSelector=workloads.kcp.dev%2Fcluster%3Dbrief"
	admin := newUser(t, s, s.Config)
	namespace := s.Namespace(t)
	of := func(uid types.UID) user { return newUser(t, s, s.AsSyncerOf(t, "brief", uid)) }
	requests := []string{
		"/apis", "/readyz", "/api/v1/namespaces/kube-system", "/api/v1/secrets?" + selBrief, "/api/v1/namespaces/" + namespace + "/secrets/mine",
		clusterSample.base("") + "/brief", clusterSample.base("") + "?fieldSelector=metadata.name%3Dbrief",
		"/api/v1/secrets?watch=true&timeoutSeconds=1&" + selBrief,
	}
	expect := func(who string, u user, want int) {
		t.Helper()
		for _, path := range requests {
			if code, body := u.ask("GET", path, "", ""); code != want {
				t.Errorf("%s: GET %s = %d %s, want %d", who, path, code, body, want)
			}
		}
	}
	admin.make(samples[1], namespace, "mine", `"workloads.kcp.dev/cluster":"brief"`)
	expect("before there is a Cluster", of("early"), 403)
	first := admin.register("brief")
	expect("the first", of(first), 200)
	expect("one without a UID", newUser(t, s, s.AsUser(t, "system:rik:syncer:brief")), 403)
	expect("one with another UID", of("another"), 403)
	expect("one in a mighty group", newUser(t, s, s.AsUser(t, "system:rik:syncer:brief", "system:masters")), 403)
	var watches []<-chan error
	for _, path := range []string{"/api/v1/secrets?watch=true&" + selBrief, clusterSample.base("") + "?watch=true&fieldSelector=metadata.name%3Dbrief"} {
		watches = append(watches, watched(t, s, s.AsSyncerOf(t, "brief", first), path))
	}

	if code, body := admin.ask("DELETE", clusterSample.base("")+"/brief", "", ""); code != http.StatusOK {
		t.Fatalf("deleting the Cluster: %d %s", code, body)
	}
	for _, end := range watches {
		select {
		case <-end:
		case <-time.After(served.Timeout):
			t.Error("a watch goes on without its Cluster")
		}
	}
	expect("the first, without a Cluster", of(first), 403)
	second := admin.register("brief")
	expect("the first, with the second", of(first), 403)
	expect("the second", of(second), 200)
}

// watched opens a watch, waits for its first event, and reports when it ends.
func watched(t *testing.T, s *served.Server, config *rest.Config, path string) <-chan error {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatalf("watching %s: %v", path, err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	events := bufio.NewReader(response.Body)
	if first, err := events.ReadString('\n'); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("watching %s: %s %s (%v)", path, response.Status, first, err)
	}
	end := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, events)
		end <- err
	}()
	return end
}
