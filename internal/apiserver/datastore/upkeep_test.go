package datastore

import (
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/internal/testkit/output"
)

func TestObservations(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	first := observation{at: begin, revision: 100, compacted: 50}.after(observation{})
	if first.overdue() || !first.advanced.Equal(begin) {
		t.Errorf("the first observation is %+v", first)
	}
	for name, tc := range map[string]struct {
		next                observation
		overdue, nearlyFull bool
	}{
		"compacted":            {observation{at: begin.Add(time.Hour), revision: 1 << 20, compacted: 51}, false, false},
		"not compacted":        {observation{at: begin.Add(time.Hour), revision: 1 << 20, compacted: 50}, true, false},
		"not yet":              {observation{at: begin.Add(20 * time.Minute), revision: 1 << 20, compacted: 50}, false, false},
		"idle":                 {observation{at: begin.Add(24 * time.Hour), revision: 1100, compacted: 50}, false, false},
		"more than half full":  {observation{at: begin, size: Size{InUse: 61, Quota: 100}}, false, true},
		"half full":            {observation{at: begin, size: Size{InUse: 50, Quota: 100}}, false, false},
		"large without quota":  {observation{at: begin, size: Size{InUse: 1 << 40}}, false, false},
		"full of free content": {observation{at: begin, size: Size{Stored: 100, InUse: 10, Quota: 100}}, false, false},
	} {
		got := tc.next.after(first)
		if got.overdue() != tc.overdue || got.nearlyFull() != tc.nearlyFull {
			t.Errorf("%s: overdue %v, nearly full %v; want %v, %v", name, got.overdue(), got.nearlyFull(), tc.overdue, tc.nearlyFull)
		}
	}
}

// TestUpkeep: the metrics have the values of the datastore, and a warning is logged once.
func TestUpkeep(t *testing.T) {
	t.Parallel()
	store, err := Open(t.Context(), Config{Dir: t.TempDir(), Quota: 64 << 20, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	var log output.Buffer
	u := NewUpkeep(store, slog.New(slog.NewTextHandler(&log, nil)))
	u.observe(t.Context())
	registry := prometheus.NewRegistry()
	if err := registry.Register(u); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		values[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
	}
	if values["rik_datastore_observed"] != 1 || values["rik_datastore_quota_bytes"] != 64<<20 || values["rik_datastore_stored_bytes"] < 1000 ||
		values["rik_datastore_revision"] < 1 || values["rik_datastore_last_compaction_timestamp_seconds"] < float64(time.Now().Add(-time.Hour).Unix()) {
		t.Errorf("the metrics are %v", values)
	}
	u.mu.Lock()
	u.latest.advanced = time.Now().Add(-time.Hour)
	u.latest.revision += 1 << 20
	u.warnLocked()
	u.warnLocked()
	u.mu.Unlock()
	if text := log.String(); strings.Count(text, "not compacted") != 1 || !strings.Contains(text, "limit=30m") {
		t.Errorf("the log is:\n%s", text)
	}
}

// TestAlertsNameMetrics: each alert rule uses metrics that exist.
func TestAlertsNameMetrics(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../../docs/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	descriptions := make(chan *prometheus.Desc, len(metrics)+1)
	NewUpkeep(nil, nil).Describe(descriptions)
	close(descriptions)
	name := regexp.MustCompile(`rik_datastore_[a-z_]+`)
	for d := range descriptions {
		known[name.FindString(d.String())] = true
	}
	alerts := 0
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			alerts++
			used := name.FindAllString(rule.Expr, -1)
			if len(used) == 0 || rule.Annotations["summary"] == "" {
				t.Errorf("the alert %s has no metric or no summary", rule.Alert)
			}
			for _, m := range used {
				if !known[m] {
					t.Errorf("the alert %s uses the metric %s, which does not exist", rule.Alert, m)
				}
			}
		}
	}
	if alerts == 0 {
		t.Error("there are no alerts")
	}
}
