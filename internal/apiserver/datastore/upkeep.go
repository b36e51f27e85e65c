package datastore

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"rik.dev/rik/internal/apiserver/datastore/kine"
	"rik.dev/rik/internal/pause"
)

const (
	// upkeepInterval is the pause between two observations.
	upkeepInterval = time.Minute
	// upkeepTimeout bounds one observation.
	upkeepTimeout = 30 * time.Second
	// compactionLate is how long no compaction may succeed. The API server compacts every five
	// minutes to the revision of five minutes before.
	compactionLate = 30 * time.Minute
	// revisionsAtMost is the number of revisions that a datastore may keep without a compaction. An
	// idle SQL datastore keeps KeptRevisions forever.
	revisionsAtMost = 10 * kine.KeptRevisions
	// fullFrom is the share of the quota, in percent, above which the administrator is warned.
	fullFrom = 60
	// warnInterval is the pause between two warnings about the same problem.
	warnInterval = 10 * time.Minute
)

// observation is the state of a datastore at one time.
type observation struct {
	size                Size
	revision, compacted int64
	// advanced is when compacted was last seen to rise. At first it is the time of the first
	// observation.
	advanced time.Time
	at       time.Time
}

// after returns the observation with the time of the last compaction, which follows from the
// previous observation.
func (o observation) after(previous observation) observation {
	o.advanced = previous.advanced
	if previous.advanced.IsZero() || o.compacted > previous.compacted {
		o.advanced = o.at
	}
	return o
}

// overdue reports whether compactions do not run.
func (o observation) overdue() bool {
	return o.at.Sub(o.advanced) > compactionLate && o.revision-o.compacted > revisionsAtMost
}

// nearlyFull reports whether much of the quota is used.
func (o observation) nearlyFull() bool {
	return o.size.Quota > 0 && o.size.InUse*100 >= o.size.Quota*fullFrom
}

// Upkeep observes the size and the compactions of a datastore, for metrics and warnings.
type Upkeep struct {
	store  *Datastore
	logger *slog.Logger

	mu     sync.Mutex
	latest observation
	failed bool
	warned map[string]time.Time
}

// NewUpkeep creates an observer, which begins with Run. It is also the collector of the metrics
// rik_datastore_….
func NewUpkeep(store *Datastore, logger *slog.Logger) *Upkeep {
	return &Upkeep{store: store, logger: logger, warned: map[string]time.Time{}}
}

// Run observes until ctx ends.
func (u *Upkeep) Run(ctx context.Context) error {
	for {
		u.observe(ctx)
		if !pause.For(ctx, upkeepInterval) {
			return nil
		}
	}
}

func (u *Upkeep) observe(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, upkeepTimeout)
	defer cancel()
	o, err := u.look(ctx)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.failed = err != nil; u.failed {
		u.logger.Debug("observing the datastore failed", "err", err) // an outage is reported elsewhere
		return
	}
	u.latest = o.after(u.latest)
	u.warnLocked()
}

func (u *Upkeep) look(ctx context.Context) (observation, error) {
	o := observation{at: time.Now()}
	var err error
	if o.size, err = u.store.Size(ctx); err != nil {
		return o, err
	}
	if o.revision, err = u.store.Revision(ctx); err != nil {
		return o, err
	}
	o.compacted, err = u.store.Compacted(ctx)
	return o, err
}

func (u *Upkeep) warnLocked() {
	o := u.latest
	if o.overdue() && u.dueLocked("compaction") {
		u.logger.Warn("the datastore is not compacted and grows: read the errors before this one for the cause",
			"lastCompaction", o.at.Sub(o.advanced).Round(time.Second), "limit", compactionLate, "revisions", o.revision-o.compacted)
	}
	// The embedded etcd watches its quota more often.
	if u.store.space == nil && o.nearlyFull() && u.dueLocked("quota") {
		u.logger.Warn("much of the datastore's quota is used; next: delete objects, or raise the quota (--datastore-quota, or --quota-backend-bytes of an external etcd)",
			"bytesInUse", o.size.InUse, "quota", o.size.Quota)
	}
}

// dueLocked reports whether a warning was not logged recently.
func (u *Upkeep) dueLocked(about string) bool {
	if now := time.Now(); now.Sub(u.warned[about]) >= warnInterval {
		u.warned[about] = now
		return true
	}
	return false
}

// metric is one metric of a datastore.
type metric struct {
	desc  *prometheus.Desc
	value func(observation) float64
}

func newMetric(name, help string, value func(observation) float64) metric {
	return metric{prometheus.NewDesc("rik_datastore_"+name, help, nil, nil), value}
}

var (
	observedDesc = prometheus.NewDesc("rik_datastore_observed", "Whether the datastore answered the last observation: 1 or 0.", nil, nil)

	metrics = []metric{
		newMetric("stored_bytes", "Size of the datastore's files or table.", func(o observation) float64 { return float64(o.size.Stored) }),
		newMetric("in_use_bytes", "Part of rik_datastore_stored_bytes that contains objects and old revisions.", func(o observation) float64 { return float64(o.size.InUse) }),
		newMetric("quota_bytes", "Size above which nothing is stored any more. 0 means no quota.", func(o observation) float64 { return float64(o.size.Quota) }),
		newMetric("revision", "Latest revision.", func(o observation) float64 { return float64(o.revision) }),
		newMetric("compacted_revision", "Revision up to which old revisions were removed.", func(o observation) float64 { return float64(o.compacted) }),
		newMetric("last_compaction_timestamp_seconds", "Time at which rik_datastore_compacted_revision last rose, or at which the server started.", func(o observation) float64 { return float64(o.advanced.Unix()) }),
	}
)

// Describe implements prometheus.Collector.
func (u *Upkeep) Describe(c chan<- *prometheus.Desc) {
	c <- observedDesc
	for _, m := range metrics {
		c <- m.desc
	}
}

// Collect implements prometheus.Collector. It returns the values of the last successful
// observation, and none before the first.
func (u *Upkeep) Collect(c chan<- prometheus.Metric) {
	u.mu.Lock()
	o, observed := u.latest, 1.0
	if u.failed {
		observed = 0
	}
	u.mu.Unlock()
	if o.at.IsZero() {
		return
	}
	c <- prometheus.MustNewConstMetric(observedDesc, prometheus.GaugeValue, observed)
	for _, m := range metrics {
		c <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, m.value(o))
	}
}
