package cluster

import (
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
)

// member is one cluster while it is connected: a loop that asks how it is, and while
// the registered cluster answers, its importer and its syncer.
type member struct {
	identity identity
	// kcp is the UID of the kcp's own namespace kube-system.
	kcp      string
	name     string
	mode     workloadv1alpha1.SyncMode
	location string
	config   *Config
	logger   *slog.Logger
	// upstream and downstream are the two sides, http the connections to the cluster.
	upstream, downstream *rest.Config
	http                 *http.Client
	prober               *prober
	importer             *importer
	agent                *agent
	sweeper              *sweeper
	// report makes of an error what may be shown.
	errorText func(error) string
	// changed asks for a pass over the Cluster, and event tells of it.
	changed func()
	event   func(kind, reason, message string)

	cancel context.CancelFunc
	group  errgroup.Group
	// wake starts the agent's next round, and the importer's is its own. strayed says
	// that there are strays.
	wake, strayed chan struct{}

	mu sync.Mutex
	// seen, types, carried and strays are guarded by mu: what was found, what is to be
	// imported, what is to be carried, and what is perhaps to be let go of.
	seen           observation
	types, carried []string
	strays         []stray
}

// newMember makes what a Cluster's member consists of. It connects to nothing yet.
func (c *Controller) newMember(cluster *workloadv1alpha1.Cluster, identity identity, pinned string, downstream *rest.Config) (*member, error) {
	downstream.UserAgent = fieldManager
	about := referenceTo(cluster)
	m := &member{
		identity: identity, name: cluster.Name, mode: identity.mode, location: locationOf(downstream.Host), config: &c.config,
		logger:   c.config.Logger.With("cluster", cluster.Name),
		upstream: c.upstream, downstream: downstream,
		errorText: kubeconfig.Redaction(downstream), changed: func() { c.queue.Add(cluster.Name) },
		event: func(kind, reason, message string) { c.recorder.Event(about, kind, reason, message) },
		wake:  make(chan struct{}, 1), strayed: make(chan struct{}, 1),
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

// locationOf is the host and port of an API server. It may have come through the
// parser of kubeconfigs only.
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

// stop ends the member and waits until all of it has ended.
func (m *member) stop() {
	m.cancel()
	_ = m.group.Wait() // run returns no error
	m.disconnect()
}

// disconnect closes the connections that nobody uses.
func (m *member) disconnect() { utilnet.CloseIdleConnectionsFor(m.http.Transport) }

// discovery asks the cluster what it serves, until end or ctx ends it.
func (m *member) discovery(ctx context.Context) (d discovery.DiscoveryInterface, end func(), err error) {
	ctx, end = context.WithTimeout(ctx, discoveryTimeout)
	if d, err = bounded.Discovery(ctx, m.downstream, m.http); err != nil {
		end()
		return nil, nil, err
	}
	return d, end, nil
}

// run asks the cluster how it is, again and again. What works on the cluster starts
// when the registered one answers, goes on while none does, and ends when another does.
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

// note keeps what a probe found, and says whether the cluster is, as far as is known,
// the one that was registered.
func (m *member) note(now probe) bool {
	m.mu.Lock()
	before := m.seen.probe
	m.seen.probe = now
	if m.seen.pinned == "" {
		m.seen.pinned = now.uid
	}
	mine := m.seen.pinned == now.uid && now.uid != m.kcp
	m.mu.Unlock()
	if !sameProbe(before, now) {
		m.changed()
	}
	if before.trouble != nil && now.trouble == nil {
		m.importer.poke()
	}
	return mine
}

func sameProbe(a, b probe) bool {
	sameTrouble := a.trouble == b.trouble || a.trouble != nil && b.trouble != nil && *a.trouble == *b.trouble
	return sameTrouble && a.at.IsZero() == b.at.IsZero() && a.uid == b.uid && a.version == b.version && a.supply.equal(b.supply)
}

// work starts what works on the cluster, and gives what ends it and waits for it.
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
		m.letGoOfStrays(ctx)
		return nil
	})
	return func() {
		cancel()
		_ = group.Wait() // none returns an error
	}
}

// want says what is to be imported and carried from now on.
func (m *member) want(types, carried []string) {
	m.mu.Lock()
	newTypes, newCarried := !slices.Equal(m.types, types), !slices.Equal(m.carried, carried)
	m.types, m.carried = types, carried
	m.mu.Unlock()
	if newTypes {
		m.importer.poke()
	}
	if newCarried {
		poke(m.wake)
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

// report changes what was seen, and asks for a pass if that is something new.
func (m *member) report(change func(*observation) (isNew bool)) {
	m.mu.Lock()
	isNew := change(&m.seen)
	m.mu.Unlock()
	if isNew {
		m.changed()
	}
}

// poke wakes who waits on a channel of one place, or will wait next.
func poke(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
