package recovery

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/robfig/cron/v3"
	"github.com/spf13/pflag"

	"rik.dev/rik/internal/backup"
	"rik.dev/rik/internal/backup/place"
	"rik.dev/rik/internal/pause"
)

const (
	// defaultKeep is how many scheduled backups are kept by default: two weeks of daily ones.
	defaultKeep = 14
	// retryAfter is the pause after a backup that failed.
	retryAfter = 10 * time.Minute
	// look is the pause between two looks at the clock and at who is active. Clocks jump, so one
	// long wait would not do.
	look = 10 * time.Second
	// scratchDir is in the data directory. It has the backup and the scratch datastore while a
	// backup is verified.
	scratchDir = "backup-scratch"
)

// ScheduleFlags are the flags of scheduled backups.
type ScheduleFlags struct {
	when, to    string
	recipients  []string
	unencrypted bool
	keep        int
}

// Add adds the flags to those of a server.
func (f *ScheduleFlags) Add(s *pflag.FlagSet) {
	s.StringVar(&f.when, "backup-schedule", "", `create backups at these times, in the server's time zone: a cron expression such as "30 3 * * *", @daily, or @every 6h`)
	s.StringVar(&f.to, "backup-to", "", "directory or s3://bucket/prefix of the scheduled backups; the variables AWS_* describe the store")
	s.StringArrayVar(&f.recipients, "backup-recipient", nil, "public key that can decrypt the scheduled backups: age1... of age-keygen, ssh-ed25519 or ssh-rsa; may be repeated")
	s.BoolVar(&f.unencrypted, "backup-unencrypted", false, "do not encrypt the scheduled backups; each contains all keys of the cluster")
	s.IntVar(&f.keep, "backup-keep", defaultKeep, "number of scheduled backups to keep; older ones are removed after a newer one was verified")
}

// Plan is a valid schedule.
type Plan struct {
	schedule cron.Schedule
	to       place.Place
	keys     backup.Recipients
	keep     int
	look     time.Duration
}

// Plan reports every mistake in the flags. It returns nil without a schedule.
func (f *ScheduleFlags) Plan() (*Plan, error) {
	if f.when == "" {
		if f.to != "" || len(f.recipients) > 0 || f.unencrypted {
			return nil, errors.New("--backup-to, --backup-recipient and --backup-unencrypted need --backup-schedule")
		}
		return nil, nil //nolint:nilnil // documented
	}
	p := &Plan{keep: f.keep, look: look}
	var problems []error
	var err error
	if p.schedule, err = cron.ParseStandard(f.when); err != nil {
		problems = append(problems, fmt.Errorf("--backup-schedule %q: %w: use five fields such as \"30 3 * * *\", @daily, or @every 6h", f.when, err))
	} else if p.schedule.Next(time.Now()).IsZero() {
		problems = append(problems, fmt.Errorf("--backup-schedule %q names no time that will come", f.when))
	}
	var name string
	if f.to == "" {
		problems = append(problems, errors.New("--backup-schedule needs --backup-to"))
	} else if p.to, name, err = place.Parse(strings.TrimSuffix(f.to, "/") + "/"); err != nil {
		problems = append(problems, fmt.Errorf("--backup-to: %w", err))
	} else if name != "" {
		problems = append(problems, fmt.Errorf("--backup-to %s names a backup: use a directory or a prefix", f.to))
	}
	if f.keep < 1 {
		problems = append(problems, fmt.Errorf("--backup-keep %d: keep at least 1", f.keep))
	}
	if p.keys, err = backup.ParseRecipients(f.recipients...); err == nil {
		p.keys.Unencrypted = f.unencrypted
		err = p.keys.Validate()
	}
	if err != nil {
		problems = append(problems, fmt.Errorf("--backup-recipient: %w: name a public key, or use --backup-unencrypted", err))
	}
	return p, errors.Join(problems...)
}

// Server is what the schedule needs of a server.
type Server struct {
	// Backup writes a backup of the cluster.
	Backup func(ctx context.Context, to backup.Recipients, w io.Writer) (*backup.Manifest, error)
	// Active reports whether this server's controller is the active one. Only its server creates
	// backups.
	Active func() bool
	// Cluster is the ID of the cluster, and DataDir the data directory.
	Cluster, DataDir string
	// Announce tells users about the result: an event.
	Announce func(ctx context.Context, failed error, message string)
	Logger   *slog.Logger
	Metrics  prometheus.Registerer
}

// metrics are those of scheduled backups.
type metrics struct {
	last, bytes, objects prometheus.Gauge
	failures             prometheus.Counter
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "rik", Subsystem: "backup", Name: name, Help: help})
	}
	m := &metrics{
		last:    gauge("last_success_timestamp_seconds", "Time of the last scheduled backup that was created and verified by this server. 0 if there is none."),
		bytes:   gauge("last_size_bytes", "Size of that backup."),
		objects: gauge("last_objects", "Number of objects in that backup."),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "rik", Subsystem: "backup", Name: "failures_total", Help: "Scheduled backups that failed.",
		}),
	}
	return m, errors.Join(r.Register(m.last), r.Register(m.bytes), r.Register(m.objects), r.Register(m.failures))
}

// Run creates backups until ctx ends. Failures are reported and retried.
func (p *Plan) Run(ctx context.Context, s Server) error {
	m, err := newMetrics(s.Metrics)
	if err != nil {
		return fmt.Errorf("registering the metrics of backups: %w", err)
	}
	begun, failed := time.Now(), time.Time{}
	var last time.Time
	known := false // last is that of the place
	for pause.For(ctx, p.look) {
		if !s.Active() {
			known = false // another server creates them
			continue
		}
		if time.Since(failed) < retryAfter {
			continue
		}
		var err error
		if !known {
			last, err = p.last(ctx, s)
			known = err == nil
		}
		if err == nil && p.schedule.Next(orElse(last, begun)).After(time.Now()) {
			continue
		}
		if err == nil {
			known = false
			err = p.create(ctx, s, m)
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was told to end
		}
		if err == nil {
			failed = time.Time{}
			continue
		}
		failed = time.Now()
		m.failures.Inc()
		s.Logger.Error("the scheduled backup failed; it is tried again", "to", p.to.Path(""), "after", retryAfter, "err", err)
		s.Announce(ctx, err, fmt.Sprintf("the scheduled backup to %s failed: %v", p.to.Path(""), err))
	}
	return nil
}

func orElse(t, otherwise time.Time) time.Time {
	if t.IsZero() {
		return otherwise
	}
	return t
}

// prefix begins the names of a cluster's scheduled backups. Others are never removed.
func prefix(cluster string) string { return "scheduled-" + cluster[:min(len(cluster), 8)] + "-" }

// mine returns the scheduled backups of the cluster, oldest first.
func (p *Plan) mine(ctx context.Context, s Server) ([]place.Item, error) {
	items, err := p.to.List(ctx)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // the first backup creates the directory
	}
	if err != nil {
		return nil, fmt.Errorf("listing the backups: %w", err)
	}
	return slices.DeleteFunc(items, func(i place.Item) bool { return !strings.HasPrefix(i.Name, prefix(s.Cluster)) }), nil
}

// last returns the time of the last scheduled backup, by its name, so that a server that starts, or
// becomes active, continues the schedule. A time in the future is ignored: a clock was ahead.
func (p *Plan) last(ctx context.Context, s Server) (time.Time, error) {
	items, err := p.mine(ctx, s)
	if err != nil {
		return time.Time{}, err
	}
	for _, i := range slices.Backward(items) {
		_, rest, _ := strings.Cut(i.Name, "-rik-")
		text, _, _ := strings.Cut(rest, "-")
		if at, err := time.Parse("20060102T150405Z", text); err == nil && !at.After(time.Now()) {
			return at.Local(), nil
		}
	}
	return time.Time{}, nil
}

// create creates a backup, restores it into a scratch datastore, stores it, reads it back, and then
// removes old ones.
func (p *Plan) create(ctx context.Context, s Server, m *metrics) (err error) {
	began := time.Now()
	scratch := filepath.Join(s.DataDir, scratchDir)
	// That of a killed predecessor is not in use: the data directory is locked.
	if err := errors.Join(os.RemoveAll(scratch), os.Mkdir(scratch, 0o700)); err != nil {
		return fmt.Errorf("creating a scratch directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	// Nobody on this machine can decrypt a backup for a recipient. So it is verified before it is
	// encrypted. The directory has the keys of the cluster anyway.
	file := filepath.Join(scratch, "plain"+backup.Extension)
	if err := s.write(ctx, file); err != nil {
		return err
	}
	manifest, err := Verify(ctx, func() (io.ReadCloser, error) { return os.Open(file) }, backup.Identities{}, scratch)
	if err != nil {
		return fmt.Errorf("verifying the backup: %w", err)
	}
	plain, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("reading the backup: %w", err)
	}
	defer plain.Close()
	name := prefix(s.Cluster) + backup.Name(began)
	size, err := p.store(ctx, name, plain)
	if err != nil {
		return err
	}
	s.Logger.Info("the scheduled backup was created and verified", "backup", p.to.Path(name), "objects", manifest.Objects, "revision", manifest.Revision, "bytes", size, "took", time.Since(began).Round(time.Millisecond))
	s.Announce(ctx, nil, fmt.Sprintf("the scheduled backup %s was created and verified: %d objects at revision %d", p.to.Path(name), manifest.Objects, manifest.Revision))
	m.last.Set(float64(began.Unix()))
	m.bytes.Set(float64(size))
	m.objects.Set(float64(manifest.Objects))
	return p.prune(ctx, s)
}

// write writes a backup without encryption.
func (s Server) write(ctx context.Context, file string) error {
	out, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("writing the backup: %w", err)
	}
	_, err = s.Backup(ctx, backup.Recipients{Unencrypted: true}, out)
	if err = errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("creating the backup: %w", err)
	}
	return nil
}

// store encrypts a backup and stores it. It then reads it back, and compares what it reads.
func (p *Plan) store(ctx context.Context, name string, plain io.Reader) (int64, error) {
	written := &digest{Hash: sha256.New()}
	_, err := backup.Seal(ctx, p.keys, plain, func(ctx context.Context, content io.Reader) error {
		return p.to.Put(ctx, name, io.TeeReader(content, written))
	})
	if err != nil {
		return 0, fmt.Errorf("storing the backup: %w", err)
	}
	in, err := p.to.Open(ctx, name)
	if err != nil {
		return 0, fmt.Errorf("reading the stored backup: %w", err)
	}
	defer in.Close()
	read := &digest{Hash: sha256.New()}
	if _, err := io.Copy(read, in); err != nil {
		return 0, fmt.Errorf("reading the stored backup: %w", err)
	}
	if read.n != written.n || string(read.Sum(nil)) != string(written.Sum(nil)) {
		return 0, fmt.Errorf("the stored backup %s differs from what was written: %d bytes instead of %d", p.to.Path(name), read.n, written.n)
	}
	return read.n, nil
}

// digest counts and hashes.
type digest struct {
	hash.Hash
	n int64
}

func (d *digest) Write(p []byte) (int, error) {
	d.n += int64(len(p))
	return d.Hash.Write(p)
}

// prune removes all scheduled backups but the newest.
func (p *Plan) prune(ctx context.Context, s Server) error {
	items, err := p.mine(ctx, s)
	if err != nil {
		return err
	}
	var problems []error
	for _, i := range items[:max(len(items)-p.keep, 0)] {
		if err := p.to.Remove(ctx, i.Name); err != nil {
			problems = append(problems, err)
			continue
		}
		s.Logger.Info("an old scheduled backup was removed", "backup", p.to.Path(i.Name), "keep", p.keep)
	}
	return errors.Join(problems...)
}
