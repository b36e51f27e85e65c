package recovery

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/backup"
	"rik.dev/rik/internal/testkit/apitest"
)

func TestMain(m *testing.M) { os.Exit(apitest.RunMain(m)) }

func TestPlan(t *testing.T) {
	t.Parallel()
	const key = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"
	for name, tc := range map[string]struct {
		flags ScheduleFlags
		says  string // empty: it is valid
	}{
		"none":                 {ScheduleFlags{keep: 14}, ""},
		"daily":                {ScheduleFlags{when: "@daily", to: "/b", recipients: []string{key}, keep: 1}, ""},
		"five fields":          {ScheduleFlags{when: "30 3 * * *", to: "/b", unencrypted: true, keep: 1}, ""},
		"an impossible time":   {ScheduleFlags{when: "0 0 30 2 *", to: "/b", unencrypted: true, keep: 1}, "names no time"},
		"no time":              {ScheduleFlags{when: "soon", to: "/b", unencrypted: true, keep: 1}, "--backup-schedule"},
		"no place":             {ScheduleFlags{when: "@daily", unencrypted: true, keep: 1}, "--backup-to"},
		"no recipient":         {ScheduleFlags{when: "@daily", to: "/b", keep: 1}, "--backup-unencrypted"},
		"both":                 {ScheduleFlags{when: "@daily", to: "/b", recipients: []string{key}, unencrypted: true, keep: 1}, "--backup-recipient"},
		"a broken recipient":   {ScheduleFlags{when: "@daily", to: "/b", recipients: []string{"age1"}, keep: 1}, "age1"},
		"none to keep":         {ScheduleFlags{when: "@daily", to: "/b", unencrypted: true}, "--backup-keep"},
		"a place, no schedule": {ScheduleFlags{to: "/b", keep: 14}, "--backup-schedule"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := tc.flags.Plan()
			if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Plan() = %v, want an error saying %q", err, tc.says)
			}
		})
	}
}

// TestScheduledBackups: the active server creates backups, verifies them and keeps the newest. It
// removes nothing else, and nothing when a backup cannot be created.
func TestScheduledBackups(t *testing.T) {
	t.Parallel()
	api := apitest.Shared(t)
	to := t.TempDir()
	for _, name := range []string{"other.rikbackup", "scheduled-c9999999-rik-20000101T000000Z-x.rikbackup", "scheduled-c1234567-rik-20000101T000000Z-x.rikbackup", "scheduled-c1234567-rik-20000102T000000Z-x.rikbackup"} {
		if err := os.WriteFile(filepath.Join(to, name), []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	plan, err := (&ScheduleFlags{when: "@every 1s", to: to, unencrypted: true, keep: 2}).Plan()
	if err != nil {
		t.Fatal(err)
	}
	plan.look = 10 * time.Millisecond
	var active, broken atomic.Bool
	var mu sync.Mutex
	var said []string
	announced := make(chan struct{}, 100)
	registry := prometheus.NewRegistry()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- plan.Run(ctx, Server{
			Backup: func(ctx context.Context, keys backup.Recipients, w io.Writer) (*backup.Manifest, error) {
				if broken.Load() {
					return nil, errors.New("the datastore is away")
				}
				return api.API.Backup(ctx, keys, w)
			},
			Active: active.Load, Cluster: "c1234567-89ab", DataDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), Metrics: registry,
			Announce: func(_ context.Context, failed error, message string) {
				mu.Lock()
				said = append(said, message)
				mu.Unlock()
				announced <- struct{}{}
			},
		})
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	wait := func() {
		t.Helper()
		select {
		case <-announced:
		case <-time.After(apitest.Timeout):
			t.Fatal("nothing was announced")
		}
	}
	active.Store(true)
	for range 3 {
		wait()
	}
	broken.Store(true)
	for {
		wait()
		mu.Lock()
		last := said[len(said)-1]
		mu.Unlock()
		if strings.Contains(last, "failed") {
			break
		}
	}
	items, err := plan.to.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range items {
		names = append(names, i.Name)
	}
	text := strings.Join(names, " ")
	if strings.Contains(text, "scheduled-c1234567-rik-2000") || !strings.Contains(text, "other.rikbackup") || !strings.Contains(text, "c9999999") || len(names) != 4 {
		t.Errorf("the backups are %v, want the newest two of the cluster, and those of others", names)
	}
	newest := items[1] // other, two of the cluster, c9999999
	in, err := plan.to.Open(t.Context(), newest.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if _, err := backup.Read(t.Context(), in, backup.Identities{}, nil, backup.Visitor{}); err != nil {
		t.Errorf("%s: %v", newest.Name, err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		values[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
	}
	if at := time.Unix(int64(values["rik_backup_last_success_timestamp_seconds"]), 0); time.Since(at) > time.Hour || values["rik_backup_failures_total"] != 1 || values["rik_backup_last_size_bytes"] == 0 {
		t.Errorf("the metrics are %v", values)
	}
}

// TestFlagsOfARestore: a restore runs once. A second start with the same flags does nothing, and
// one without them refuses a restore that is not complete.
func TestFlagsOfARestore(t *testing.T) {
	t.Parallel()
	api := apitest.Shared(t)
	var file bytes.Buffer
	if _, err := api.API.Backup(t.Context(), backup.Recipients{Unencrypted: true}, &file); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x.rikbackup")
	if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := apiserver.Config{DataDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}
	f := Flags{from: path}
	for range 2 {
		if err := f.Run(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := f.Run(t.Context(), cfg); err != nil {
		t.Errorf("Run() after the backup was removed = %v", err)
	}
	if err := (&Flags{}).Run(t.Context(), cfg); err != nil {
		t.Errorf("Run() without the flag = %v", err)
	}
	if err := (&Flags{from: filepath.Dir(path) + "/"}).Run(t.Context(), apiserver.Config{DataDir: t.TempDir(), Logger: cfg.Logger}); err == nil || !strings.Contains(err.Error(), "rikctl backup list") {
		t.Errorf("Run() of a directory = %v", err)
	}
}
