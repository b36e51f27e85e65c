package netmap

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"rik.dev/rik/internal/rpc/nodev1"
)

func settings() *nodev1.NetworkSettings {
	return &nodev1.NetworkSettings{ClusterCidr: "10.62.0.0/16", ServiceCidr: "10.63.0.0/16", Domain: "rik.local"}
}

func key(workload string) *nodev1.ServiceKey {
	return &nodev1.ServiceKey{Namespace: "default", Workload: workload}
}

func service(workload, address string, ports ...*nodev1.ServicePort) *nodev1.Service {
	return &nodev1.Service{Key: key(workload), Addresses: []string{address}, Ports: ports}
}

func port(number int32) *nodev1.ServicePort {
	return &nodev1.ServicePort{Name: "http", Port: number, TargetPort: 8080, Protocol: "TCP", Type: "clusterIP"}
}

func endpoint(uid, workload, address string, ready bool) *nodev1.Endpoint {
	return &nodev1.Endpoint{
		Uid: uid, Service: key(workload), Name: workload + "-" + uid, Node: "n1", Address: address, Ready: ready,
		Ports: []*nodev1.ServicePort{port(80)},
	}
}

// compare compares addresses by value.
var compare = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func names[K comparable, V any](m map[K]V) []string {
	var all []string
	for k := range m {
		all = append(all, fmt.Sprint(k))
	}
	slices.Sort(all)
	return all
}

func TestApplyStoresWhatIsSent(t *testing.T) {
	t.Parallel()
	store := Open(Config{})
	if diff := cmp.Diff(&Snapshot{
		Peers: map[string]Peer{}, Services: map[ServiceKey]Service{}, Endpoints: map[ServiceKey]map[string]Endpoint{},
	}, store.Snapshot(), compare); diff != "" {
		t.Errorf("an empty table (-want +got):\n%s", diff)
	}
	store.Apply(&nodev1.NetworkChanges{
		Begin: true, Complete: true, Settings: settings(),
		Peers:     []*nodev1.Peer{{Name: "n1", Address: "192.0.2.1", ExternalAddress: "203.0.113.1", PodCidr: "10.62.1.0/24", Answers: true}, {Name: "n2"}},
		Services:  []*nodev1.Service{service("web", "10.63.0.7", port(80))},
		Endpoints: []*nodev1.Endpoint{endpoint("u1", "web", "10.62.1.2", true), endpoint("u2", "web", "", true)},
	})
	web := ServiceKey{"default", "web"}
	ports := []Port{{Name: "http", Port: 80, TargetPort: 8080, Protocol: "TCP", Type: "clusterIP"}}
	want := &Snapshot{
		Settings: Settings{netip.MustParsePrefix("10.62.0.0/16"), netip.MustParsePrefix("10.63.0.0/16"), "rik.local"},
		Peers: map[string]Peer{
			"n1": {"n1", netip.MustParseAddr("192.0.2.1"), netip.MustParsePrefix("10.62.1.0/24"), netip.MustParseAddr("203.0.113.1"), true}, "n2": {Name: "n2"},
		},
		Services: map[ServiceKey]Service{web: {web, []netip.Addr{netip.MustParseAddr("10.63.0.7")}, ports}},
		Endpoints: map[ServiceKey]map[string]Endpoint{web: {
			"u1": {"u1", web, "web-u1", "n1", netip.MustParseAddr("10.62.1.2"), true, false, ports},
			// An endpoint without an address cannot be ready.
			"u2": {"u2", web, "web-u2", "n1", netip.Addr{}, false, false, ports},
		}},
	}
	if diff := cmp.Diff(want, store.Snapshot(), compare); diff != "" {
		t.Errorf("snapshot (-want +got):\n%s", diff)
	}
}

func TestNothingIsRemovedBeforeTheNetmapIsComplete(t *testing.T) {
	t.Parallel()
	store := Open(Config{})
	store.Apply(&nodev1.NetworkChanges{
		Begin: true, Complete: true, Settings: settings(), Peers: []*nodev1.Peer{{Name: "n1"}, {Name: "n2"}},
		Services:  []*nodev1.Service{service("web", "10.63.0.1"), service("old", "10.63.0.2")},
		Endpoints: []*nodev1.Endpoint{endpoint("u1", "web", "10.62.1.2", true), endpoint("u2", "old", "10.62.1.3", true)},
	})
	// A complete message sequence that breaks off, then another one in two parts.
	store.Apply(&nodev1.NetworkChanges{Begin: true, Settings: settings()})
	store.Apply(&nodev1.NetworkChanges{Begin: true, Settings: settings(), Peers: []*nodev1.Peer{{Name: "n1"}, {Name: "n3"}}})
	s := store.Snapshot()
	if got := append(names(s.Peers), names(s.Services)...); !slices.Equal(got, []string{"n1", "n2", "n3", "default/old", "default/web"}) {
		t.Errorf("in the middle of the whole: %v", got)
	}
	store.Apply(&nodev1.NetworkChanges{
		Complete: true, Services: []*nodev1.Service{service("web", "10.63.0.1")},
		Endpoints: []*nodev1.Endpoint{endpoint("u1", "web", "10.62.1.2", true)},
	})
	s = store.Snapshot()
	if got := append(names(s.Peers), names(s.Services)...); !slices.Equal(got, []string{"n1", "n3", "default/web"}) {
		t.Errorf("after the whole: %v", got)
	}
	if got := names(s.Endpoints); !slices.Equal(got, []string{"default/web"}) {
		t.Errorf("endpoints after the whole are of %v", got)
	}
}

func TestGoneAndMoved(t *testing.T) {
	t.Parallel()
	store := Open(Config{})
	store.Apply(&nodev1.NetworkChanges{
		Begin: true, Complete: true, Settings: settings(), Peers: []*nodev1.Peer{{Name: "n1"}},
		Services:  []*nodev1.Service{service("web", "10.63.0.1"), service("api", "10.63.0.2")},
		Endpoints: []*nodev1.Endpoint{endpoint("u1", "web", "10.62.1.2", true), endpoint("u2", "web", "10.62.1.3", true)},
	})
	before := store.Snapshot()
	store.Apply(&nodev1.NetworkChanges{
		PeersGone: []string{"n1", "never"}, ServicesGone: []*nodev1.ServiceKey{key("web"), key("never")},
		EndpointsGone: []string{"u2", "never"}, Endpoints: []*nodev1.Endpoint{endpoint("u1", "api", "10.62.1.2", true)},
	})
	s := store.Snapshot()
	if got := append(names(s.Peers), names(s.Services)...); !slices.Equal(got, []string{"default/api"}) {
		t.Errorf("left: %v", got)
	}
	if got := names(s.Endpoints); !slices.Equal(got, []string{"default/api"}) {
		t.Errorf("endpoints are of %v", got)
	}
	if len(before.Endpoints[ServiceKey{"default", "web"}]) != 2 || len(before.Peers) != 1 {
		t.Error("an older snapshot changed")
	}
}

func TestInvalidEntriesAreSkipped(t *testing.T) {
	t.Parallel()
	bad := func(change func(*nodev1.ServicePort)) *nodev1.ServicePort {
		p := port(80)
		change(p)
		return p
	}
	tests := map[string]*nodev1.NetworkChanges{
		"::":                                  {Settings: &nodev1.NetworkSettings{ClusterCidr: "fd00::/64", ServiceCidr: "10.63.0.0/16", Domain: "d"}},
		"overlap":                             {Settings: &nodev1.NetworkSettings{ClusterCidr: "10.63.0.0/16", ServiceCidr: "10.63.0.0/24", Domain: "d"}},
		"domain is empty":                     {Settings: &nodev1.NetworkSettings{ClusterCidr: "10.62.0.0/16", ServiceCidr: "10.63.0.0/24", Domain: "."}},
		"too many":                            {Settings: &nodev1.NetworkSettings{ClusterCidr: "0.0.0.0/0", ServiceCidr: "10.63.0.0/24", Domain: "d"}},
		"no name":                             {Peers: []*nodev1.Peer{{Address: "192.0.2.1"}}},
		"unable to parse":                     {Peers: []*nodev1.Peer{{Name: "n", Address: "elsewhere"}}},
		"begin with its first address":        {Peers: []*nodev1.Peer{{Name: "n", PodCidr: "10.62.1.1/24"}}},
		"not the address of a single machine": {Peers: []*nodev1.Peer{{Name: "n", Address: "224.0.0.1"}}},
		"no workload":                         {Services: []*nodev1.Service{{Key: &nodev1.ServiceKey{Namespace: "a"}}}},
		"address is empty":                    {Services: []*nodev1.Service{service("web", "")}},
		"no UID":                              {Endpoints: []*nodev1.Endpoint{endpoint("", "web", "", true)}},
		"no namespace":                        {Endpoints: []*nodev1.Endpoint{{Uid: "u"}}},
		"not between 1 and 65535":             {Services: []*nodev1.Service{service("keep", "10.63.0.1", port(1), port(0), port(65536))}},
		"not TCP, UDP or SCTP":                {Services: []*nodev1.Service{service("keep", "10.63.0.1", port(1), bad(func(p *nodev1.ServicePort) { p.Protocol = "tcp" }))}},
		"not clusterIP":                       {Services: []*nodev1.Service{service("keep", "10.63.0.1", port(1), bad(func(p *nodev1.ServicePort) { p.Type = "" }))}},
	}
	for want, changes := range tests {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			store := Open(Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			store.Apply(changes)
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log does not contain %q:\n%s", want, &log)
			}
			s := store.Snapshot()
			if s.Settings != (Settings{}) || len(s.Peers)+len(s.Endpoints) > 0 {
				t.Errorf("kept %+v", s)
			}
			for _, kept := range s.Services {
				if kept.Key.Workload != "keep" || len(kept.Ports) != 1 {
					t.Errorf("kept %+v, want one port", kept)
				}
			}
		})
	}
}

func TestSubscribersGetChangesOnly(t *testing.T) {
	t.Parallel()
	store := Open(Config{})
	first, second := store.Subscribe(), store.Subscribe()
	seen := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	whole := &nodev1.NetworkChanges{
		Begin: true, Complete: true, Settings: settings(), Peers: []*nodev1.Peer{{Name: "n1", Address: "192.0.2.1"}},
		Services:  []*nodev1.Service{service("web", "10.63.0.1", port(80))},
		Endpoints: []*nodev1.Endpoint{endpoint("u1", "web", "10.62.1.2", true)},
	}
	store.Apply(whole)
	if !seen(first) || !seen(second) {
		t.Fatal("not all subscribers were notified")
	}
	before := store.Snapshot()
	store.Apply(whole)
	if seen(first) || seen(second) || store.Snapshot() != before {
		t.Error("the same again counted as a change")
	}
	store.Apply(&nodev1.NetworkChanges{Endpoints: []*nodev1.Endpoint{endpoint("u1", "web", "10.62.1.2", false)}})
	if !seen(first) || store.Snapshot() == before {
		t.Error("a change was not notified")
	}
}

func TestSurvivesARestart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "table")
	synctest.Test(t, func(t *testing.T) {
		store := Open(Config{Path: path})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- store.Run(ctx) }()
		store.Apply(&nodev1.NetworkChanges{
			Begin: true, Complete: true, Settings: settings(), Peers: []*nodev1.Peer{{Name: "n1", Address: "192.0.2.1", PodCidr: "10.62.1.0/24"}, {Name: "n2"}},
			Services:  []*nodev1.Service{service("web", "10.63.0.1", port(80))},
			Endpoints: []*nodev1.Endpoint{endpoint("u1", "web", "10.62.1.2", true), endpoint("u2", "web", "", false)},
		})
		time.Sleep(2 * saveInterval) // of the bubble's clock
		again := Open(Config{Path: path})
		if diff := cmp.Diff(store.Snapshot(), again.Snapshot(), compare); diff != "" {
			t.Errorf("read back (-kept +read):\n%s", diff)
		}
		// The last change is saved when the process ends.
		store.Apply(&nodev1.NetworkChanges{EndpointsGone: []string{"u1"}})
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(store.Snapshot(), Open(Config{Path: path}).Snapshot(), compare); diff != "" {
			t.Errorf("read back after the end (-kept +read):\n%s", diff)
		}
	})
}

func TestBrokenFileIsIgnored(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "table")
	if err := os.WriteFile(path, []byte("\xff\xff nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	store := Open(Config{Path: path})
	if s := store.Snapshot(); len(s.Peers) > 0 || s.Settings != (Settings{}) {
		t.Errorf("read %+v of nonsense", s)
	}
}

// TestAnySplitGivesTheWholeNetmap checks that the result does not depend on how the netmap is split
// into messages, or on the former content.
func TestAnySplitGivesTheWholeNetmap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.IntRange(0, 9)
		draw := func(label string) *nodev1.NetworkChanges {
			c := &nodev1.NetworkChanges{}
			for _, n := range rapid.SliceOfNDistinct(number, 0, 8, rapid.ID[int]).Draw(t, label+" peers") {
				c.Peers = append(c.Peers, &nodev1.Peer{Name: fmt.Sprint("n", n), Address: fmt.Sprintf("192.0.2.%d", rapid.IntRange(1, 3).Draw(t, "address"))})
			}
			for _, n := range rapid.SliceOfNDistinct(number, 0, 8, rapid.ID[int]).Draw(t, label+" services") {
				c.Services = append(c.Services, service(fmt.Sprint("w", n), fmt.Sprintf("10.63.0.%d", n+1), port(rapid.Int32Range(1, 3).Draw(t, "port"))))
			}
			for _, n := range rapid.SliceOfNDistinct(number, 0, 8, rapid.ID[int]).Draw(t, label+" endpoints") {
				c.Endpoints = append(c.Endpoints, endpoint(fmt.Sprint("u", n), fmt.Sprint("w", number.Draw(t, "of")), "10.62.1.2", rapid.Bool().Draw(t, "ready")))
			}
			return c
		}
		known, sent := draw("known"), draw("sent")
		plain := Open(Config{})
		plain.Apply(whole(sent))
		split := Open(Config{})
		split.Apply(whole(known))
		pieces := []*nodev1.NetworkChanges{{Begin: true, Settings: settings()}}
		add := func(c *nodev1.NetworkChanges) {
			last := pieces[len(pieces)-1]
			if rapid.Bool().Draw(t, "cut") {
				last = &nodev1.NetworkChanges{}
				pieces = append(pieces, last)
			}
			proto.Merge(last, c)
		}
		for _, p := range sent.Peers {
			add(&nodev1.NetworkChanges{Peers: []*nodev1.Peer{p}})
		}
		for _, e := range sent.Endpoints {
			add(&nodev1.NetworkChanges{Endpoints: []*nodev1.Endpoint{e}})
		}
		for _, s := range sent.Services {
			add(&nodev1.NetworkChanges{Services: []*nodev1.Service{s}})
		}
		pieces[len(pieces)-1].Complete = true
		for _, p := range pieces {
			split.Apply(p)
			if rapid.Bool().Draw(t, "look") {
				split.Snapshot()
			}
		}
		if diff := cmp.Diff(plain.Snapshot(), split.Snapshot(), compare); diff != "" {
			t.Fatalf("in one piece and in %d (-one +many):\n%s", len(pieces), diff)
		}
		checkIndex(t, split)
	})
}

func whole(c *nodev1.NetworkChanges) *nodev1.NetworkChanges {
	c = proto.CloneOf(c)
	c.Begin, c.Complete, c.Settings = true, true, settings()
	return c
}

type fataler interface{ Fatalf(string, ...any) }

// checkIndex checks that the table's indexes are consistent.
func checkIndex(t fataler, store *Store) {
	count := 0
	for key, all := range store.Snapshot().Endpoints {
		if len(all) == 0 {
			t.Fatalf("service %s has an empty list", key)
		}
		for uid, e := range all {
			count++
			if e.UID != uid || e.Service != key || store.home[uid] != key {
				t.Fatalf("endpoint %s of %s is listed under %s of %s, found under %s", e.UID, e.Service, uid, key, store.home[uid])
			}
		}
	}
	if count != len(store.home) {
		t.Fatalf("%d endpoints, %d in the index: %v", count, len(store.home), slices.Collect(maps.Keys(store.home)))
	}
}

// FuzzApply checks that no input causes a panic or inconsistent indexes.
func FuzzApply(f *testing.F) {
	for _, c := range []*nodev1.NetworkChanges{
		whole(&nodev1.NetworkChanges{
			Peers:     []*nodev1.Peer{{Name: "n1", Address: "192.0.2.1", PodCidr: "10.62.1.0/24"}},
			Services:  []*nodev1.Service{service("web", "10.63.0.1", port(80))},
			Endpoints: []*nodev1.Endpoint{endpoint("u1", "web", "10.62.1.2", true)},
		}),
		{EndpointsGone: []string{"u1"}, ServicesGone: []*nodev1.ServiceKey{nil}, Peers: []*nodev1.Peer{nil}},
	} {
		text, err := proto.Marshal(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c := &nodev1.NetworkChanges{}
		if proto.Unmarshal(text, c) != nil {
			return
		}
		store := Open(Config{})
		store.Apply(whole(&nodev1.NetworkChanges{Endpoints: []*nodev1.Endpoint{endpoint("u1", "web", "10.62.1.2", true)}}))
		store.Apply(c)
		store.Apply(c)
		checkIndex(t, store)
		again := Open(Config{})
		again.Apply(store.Snapshot().Encode())
		if diff := cmp.Diff(store.Snapshot(), again.Snapshot(), compare); diff != "" {
			t.Fatalf("encoded and decoded (-before +after):\n%s", diff)
		}
	})
}

// TestPartsAreMarked checks that a snapshot is marked while it is partial.
func TestPartsAreMarked(t *testing.T) {
	t.Parallel()
	store := Open(Config{})
	notified := store.Subscribe()
	store.Apply(&nodev1.NetworkChanges{Begin: true, Settings: settings(), Peers: []*nodev1.Peer{{Name: "n1"}}})
	<-notified
	if !store.Snapshot().Partial {
		t.Error("a part looks like the whole")
	}
	store.Apply(&nodev1.NetworkChanges{Complete: true})
	select {
	case <-notified:
	default:
		t.Error("subscribers are not notified of the complete netmap")
	}
	if store.Snapshot().Partial {
		t.Error("the complete netmap is marked as partial")
	}
}
