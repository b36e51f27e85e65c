package cluster

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/bounded"
	"rik.dev/rik/internal/multicluster/kubeconfig"
	"rik.dev/rik/internal/wakeup"
)

// member is one connected cluster. A loop probes it. While the registered cluster answers, the
// importer and the syncer run.
type member struct {
	identity identity
	// kcp is the UID of the kcp's own namespace kube-system.
	kcp      string
	name     string
	mode     workloadv1alpha1.SyncMode
	location string
	config   *Config
	logger   *slog.Logger
	// upstream and downstream connect to the two sides. http contains the connections to the
	// cluster.
	upstream, downstream *rest.Config
	http                 *http.Client
	prober               *prober
	importer             *importer
	agent                *agent
	sweeper              *sweeper
	// errorText returns the text of an error without secrets.
	errorText func(error) string
	// changed requests a pass over the Cluster. event records an event about it.
	changed func()
	event   func(kind, reason, message string)

	cancel context.CancelFunc
	group  errgroup.Group
	// wake starts the next round of the agent. The importer has its own channel. orphansChanged signals
	// that there are orphans.
	wake, orphansChanged wakeup.Signal

	mu sync.Mutex
	// seen is the observation. types are the types to import, and carried are the types to copy.
	// orphans are objects that may have to be released. mu guards all of them.
	seen           observation
	types, carried []string
	orphans        []orphan
}

// newMember creates the member of a Cluster. It does not connect yet.
func (c *Controller) newMember(cluster *workloadv1alpha1.Cluster, identity identity, pinned string, downstream *rest.Config) (*member, error) {
	downstream.UserAgent = fieldManager
	about := referenceTo(cluster)
	m := &member{
		identity: identity, name: cluster.Name, mode: identity.mode, location: locationOf(downstream.Host), config: &c.config,
		logger:   c.config.Logger.With("cluster", cluster.Name),
		upstream: c.upstream, downstream: downstream,
		errorText: kubeconfig.Redaction(downstream), changed: func() { c.queue.Add(cluster.Name) },
		event: func(kind, reason, message string) { c.recorder.Event(about, kind, reason, message) },
		wake:  wakeup.New(), orphansChanged: wakeup.New(),
	}
	m.seen = observation{location: m.location, pinned: pinned}
	var err error
	if m.http, err = rest.HTTPClientFor(downstream); err != nil {
		return nil, err
	}
	probes := &http.Client{Transport: bounded.Answers(m.http.Transport, maxProbe)}
	if m.prober, err = newProber(downstream, probes); err != nil {
		return nil, err
	}
	if m.importer, err = c.newImporter(cluster, m); err != nil {
		return nil, err
	}
	if m.agent, err = c.newAgent(cluster, m); err != nil {
		return nil, err
	}
	m.sweeper, err = c.newSweeper(cluster, m)
	return m, err
}

// locationOf returns the host and port of an API server. server may have passed only the parser
// of kubeconfigs.
func locationOf(server string) string {
	u, err := url.Parse(server)
	if err != nil {
		return ""
	}
	if u.Port() == "" {
		return net.JoinHostPort(u.Hostname(), map[string]string{"https": "443", "http": "80"}[u.Scheme])
	}
	return u.Host
}

// start runs the member until stop.
func (m *member) start(ctx context.Context) {
	ctx, m.cancel = context.WithCancel(ctx)
	m.group.Go(func() error {
		m.run(ctx)
		return nil
	})
}

// stop stops the member and waits until all of it has ended.
func (m *member) stop() {
	m.cancel()
	_ = m.group.Wait() // run returns no error
	m.disconnect()
}

// disconnect closes idle connections.
func (m *member) disconnect() { utilnet.CloseIdleConnectionsFor(m.http.Transport) }

// discovery returns a client for the types of the cluster. It is valid until end is called or ctx
// ends.
func (m *member) discovery(ctx context.Context) (d discovery.DiscoveryInterface, end func(), err error) {
	ctx, end = context.WithTimeout(ctx, discoveryTimeout)
	if d, err = bounded.Discovery(ctx, m.downstream, m.http); err != nil {
		end()
		return nil, nil, err
	}
	return d, end, nil
}

// run probes the cluster in a loop. The work on the cluster starts when the registered cluster
// answers. It continues while no cluster answers, and stops when another cluster answers.
func (m *member) run(ctx context.Context) {
	work := func() {}
	defer func() { work() }()
	ticker := time.NewTicker(m.config.ProbeInterval)
	defer ticker.Stop()
	var last probe
	var whole time.Time
	working := false
	for {
		due := last.trouble != nil || time.Since(whole) >= m.config.PollInterval
		last = m.prober.look(ctx, last, due, m.errorText)
		if due && last.trouble == nil {
			whole = last.at
		}
		if ctx.Err() != nil {
			return
		}
		switch mine := m.note(last); {
		case !mine && working:
			work()
			work, working = func() {}, false
		case mine && !working && last.trouble == nil:
			work, working = m.work(ctx), true
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// note stores the result of a probe. It reports whether the cluster is the registered one, as far
// as is known.
func (m *member) note(now probe) bool {
	m.mu.Lock()
	before := m.seen.probe
	m.seen.probe = now
	m.seen.pinned = cmp.Or(m.seen.pinned, now.uid)
	mine := m.seen.pinned == now.uid && now.uid != m.kcp
	m.mu.Unlock()
	if !sameProbe(before, now) {
		m.changed()
	}
	if before.trouble != nil && now.trouble == nil {
		m.importer.requestPull()
	}
	return mine
}

func sameProbe(a, b probe) bool {
	sameTrouble := a.trouble == b.trouble || a.trouble != nil && b.trouble != nil && *a.trouble == *b.trouble
	return sameTrouble && a.at.IsZero() == b.at.IsZero() && a.uid == b.uid && a.version == b.version && a.supply.equal(b.supply)
}

// work starts the importer and the syncer. The returned function stops them and waits for their
// end.
func (m *member) work(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var group errgroup.Group
	group.Go(func() error {
		m.importer.run(ctx)
		return nil
	})
	group.Go(func() error {
		m.carry(ctx)
		return nil
	})
	group.Go(func() error {
		m.releaseOrphans(ctx)
		return nil
	})
	return func() {
		cancel()
		_ = group.Wait() // none of them returns an error
	}
}

// want sets the types to import and to copy.
func (m *member) want(types, carried []string) {
	m.mu.Lock()
	newTypes, newCarried := !slices.Equal(m.types, types), !slices.Equal(m.carried, carried)
	m.types, m.carried = types, carried
	m.mu.Unlock()
	if newTypes {
		m.importer.requestPull()
	}
	if newCarried {
		m.wake.Wake()
	}
}

func (m *member) wanted() (types, carried []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.types, m.carried
}

func (m *member) observe() observation {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen
}

// report changes the observation. If the change is new, it requests a pass.
func (m *member) report(change func(*observation) (isNew bool)) {
	m.mu.Lock()
	isNew := change(&m.seen)
	m.mu.Unlock()
	if isNew {
		m.changed()
	}
}
