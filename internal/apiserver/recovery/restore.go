package recovery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"rik.dev/rik/internal/apiserver/clusterid"
	"rik.dev/rik/internal/apiserver/datastore"
	"rik.dev/rik/internal/atomicfile"
	"rik.dev/rik/internal/backup"
)

// markerKey is in a datastore with a part of a backup. Its value is the ID of the backup.
const markerKey = "/rik.dev/restoring"

// writers is how many keys are written at the same time. The datastore commits them together.
const writers = 64

// ErrNotEmpty is returned for a data directory or a datastore that has content.
var ErrNotEmpty = errors.New("a backup can only be restored into an empty place")

// Opener opens a backup. It is read three times.
type Opener func() (io.ReadCloser, error)

// Target is where a backup is restored.
type Target struct {
	// Dir is the data directory. The caller has locked it.
	Dir string
	// Datastore is the datastore of the restored server, of any kind.
	Datastore datastore.Config
	// Profile is the profile of the server.
	Profile string
	// From is the place of the backup, for messages.
	From string
	// Logger logs the steps. Required.
	Logger *slog.Logger

	// after is called after each step, and ends the restore with its error. It is for tests.
	after func(step string) error
}

// Restore verifies a backup and writes it into the empty target. It can be called again after it was
// interrupted: it then begins again in a datastore of the data directory, and continues in another
// one.
func Restore(ctx context.Context, to Target, open Opener, keys backup.Identities) (*backup.Manifest, error) {
	to.Logger.Info("verifying the backup", "backup", to.From)
	m, err := read(ctx, open, keys, nil, backup.Visitor{})
	if err != nil {
		return nil, fmt.Errorf("verifying the backup %s: %w", to.From, err)
	}
	if m.Profile != to.Profile {
		return nil, fmt.Errorf("the backup %s is of a server with the profile %q, and this one has the profile %q: restore it with `rik %s --restore`", to.From, m.Profile, to.Profile, map[string]string{"kcp": "kcp"}[m.Profile]+map[string]string{"cluster": "server"}[m.Profile])
	}
	r := &restore{Target: to, open: open, keys: keys, manifest: m, floor: floor(m, time.Now())}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"the record", r.begin}, {"the claim", r.claim}, {"the revision", r.raise}, {"the objects", r.fill}, {"the files", r.files}, {"the end", r.end},
	} {
		if err := step.do(ctx); err != nil {
			return nil, err
		}
		if to.after == nil {
			continue
		}
		if err := to.after(step.name); err != nil {
			return nil, err
		}
	}
	to.Logger.Info("the backup was restored", "backup", m.ID, "objects", m.Objects, "revision", m.Revision, "revisionsAbove", r.floor, "created", m.Created)
	return m, nil
}

type restore struct {
	Target
	open     Opener
	keys     backup.Identities
	manifest *backup.Manifest
	floor    int64
	// first means that no earlier restore into the data directory was interrupted.
	first bool
}

// read reads the backup once more.
func read(ctx context.Context, open Opener, keys backup.Identities, want *backup.Manifest, visit backup.Visitor) (*backup.Manifest, error) {
	in, err := open()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	return backup.Read(ctx, in, keys, want, visit)
}

// begin checks that nothing is overwritten, and writes the record of a restore that is not complete.
func (r *restore) begin(context.Context) error {
	record, err := ReadRecord(r.Dir)
	if err != nil {
		return err
	}
	if record != nil && (record.Complete || record.Backup != r.manifest.ID) {
		return fmt.Errorf("%w: the backup %s of %s was restored into %s: choose another --data-dir", ErrNotEmpty, record.Backup, record.From, r.Dir)
	}
	if err := r.clear(record != nil); err != nil {
		return err
	}
	if record != nil {
		// It grows with time, and an administrator may have raised an external etcd to it.
		r.floor = record.Floor
		return nil
	}
	r.first = true
	return writeRecord(r.Dir, Record{
		Backup: r.manifest.ID, From: r.From, Created: r.manifest.Created,
		Revision: r.manifest.Revision, Term: r.manifest.Term, Floor: r.floor, Restored: time.Now().UTC().Truncate(time.Second),
	})
}

// clear refuses a data directory with content. It removes that of an interrupted restore.
func (r *restore) clear(again bool) error {
	entries, err := os.ReadDir(r.Dir)
	if err != nil {
		return fmt.Errorf("reading the data directory: %w", err)
	}
	ours := map[string]bool{filepath.Base(r.Datastore.Dir): true}
	for _, name := range files {
		ours[strings.Split(name, "/")[0]] = true
	}
	var foreign []string
	for _, e := range entries {
		switch name := e.Name(); {
		case name == "lock" || name == RecordFile || name == "lost+found":
		case strings.HasPrefix(name, "."): // a file that was being written
		case !again && e.IsDir() && os.Remove(filepath.Join(r.Dir, name)) == nil: // it was empty
		case again && ours[name]:
			if err := os.RemoveAll(filepath.Join(r.Dir, name)); err != nil {
				return fmt.Errorf("removing a part of the interrupted restore: %w", err)
			}
		default:
			foreign = append(foreign, name)
		}
	}
	if len(foreign) > 0 {
		return fmt.Errorf("%w: %s contains %s. Choose another --data-dir, or move its content away. To replace the server there, stop it first",
			ErrNotEmpty, r.Dir, strings.Join(foreign[:min(len(foreign), 5)], ", "))
	}
	return nil
}

// claim marks an empty datastore as one that is being restored.
func (r *restore) claim(ctx context.Context) error {
	err := r.with(ctx, func(client *clientv3.Client) error { return r.mark(ctx, client) })
	if err != nil && r.first && !errors.Is(err, datastore.ErrRevision) { // nothing was written
		err = errors.Join(err, os.Remove(filepath.Join(r.Dir, RecordFile)))
	}
	return err
}

// raise makes the revisions of the datastore newer than all that clients remember. It comes before
// the objects, so that their own versions are new, too: a client with an old version of an object
// must not be able to update it.
func (r *restore) raise(ctx context.Context) error {
	return datastore.Raise(ctx, r.Datastore, r.floor)
}

// fill writes the objects into the datastore, and compares it with the backup.
func (r *restore) fill(ctx context.Context) error {
	return r.with(ctx, func(client *clientv3.Client) error {
		answer, err := client.Get(ctx, markerKey)
		if err != nil {
			return fmt.Errorf("reading %s: %w", r.Datastore.Describe(), err)
		}
		if answer.Header.Revision < r.floor {
			return fmt.Errorf("%w: %s has the revision %d, want at least %d", datastore.ErrRevision, r.Datastore.Describe(), answer.Header.Revision, r.floor)
		}
		r.Logger.Info("writing the objects", "objects", r.manifest.Objects, "datastore", r.Datastore.Describe())
		if err := r.load(ctx, client); err != nil {
			return err
		}
		return compare(ctx, client, r.open, r.keys, r.manifest)
	})
}

// with opens the datastore and calls do with a client of it.
func (r *restore) with(ctx context.Context, do func(*clientv3.Client) error) (err error) {
	store, err := datastore.Open(ctx, r.Datastore)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	client, err := store.Endpoint().Client(zap.NewNop())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	return do(client)
}

// mark is claim with a client.
func (r *restore) mark(ctx context.Context, client *clientv3.Client) error {
	answer, err := client.Get(ctx, markerKey)
	if err != nil {
		return fmt.Errorf("reading %s: %w", r.Datastore.Describe(), err)
	}
	if len(answer.Kvs) == 1 {
		if id := string(answer.Kvs[0].Value); id != r.manifest.ID {
			return fmt.Errorf("%w: %s contains a part of the backup %s: complete its restore, or empty the datastore", ErrUnfinished, r.Datastore.Describe(), id)
		}
		return nil
	}
	store := clusterid.Store{Client: client}
	id, err := store.Load(ctx)
	if err != nil {
		return err
	}
	empty, err := store.Empty(ctx)
	if err != nil {
		return err
	}
	if id != nil || !empty {
		return fmt.Errorf("%w: %s has objects: choose another --datastore-endpoint, or empty the datastore", ErrNotEmpty, r.Datastore.Describe())
	}
	if err := datastore.CheckRevision(r.Datastore, answer.Header.Revision, r.floor); err != nil {
		return err
	}
	return put(ctx, client, backup.Entry{Key: []byte(markerKey), Value: []byte(r.manifest.ID)})
}

// Marked returns ErrUnfinished if the datastore contains a part of a backup.
func Marked(ctx context.Context, client *clientv3.Client, datastore string) error {
	answer, err := client.Get(ctx, markerKey)
	if err != nil {
		return fmt.Errorf("reading %s: %w", datastore, err)
	}
	if len(answer.Kvs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s contains a part of the backup %s: complete its restore with --restore on the same data directory, or empty the datastore", ErrUnfinished, datastore, answer.Kvs[0].Value)
}

// load writes all keys.
func (r *restore) load(ctx context.Context, client *clientv3.Client) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	leases := grants{client: client, known: map[time.Duration]clientv3.LeaseID{}}
	hasLease := false
	_, err := read(ctx, r.open, r.keys, r.manifest, backup.Visitor{Entry: func(e backup.Entry) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		hasLease = hasLease || string(e.Key) == leaseKey
		e, ok, err := r.translate(e)
		if !ok || err != nil {
			return err
		}
		e.Key, e.Value = bytes.Clone(e.Key), bytes.Clone(e.Value)
		lease, err := leases.of(ctx, e.TTL)
		if err != nil {
			return err
		}
		group.Go(func() error { return put(ctx, client, e, clientv3.WithLease(lease)) })
		return nil
	}})
	if err == nil && !hasLease {
		value, leaseErr := raisedLease(nil, r.manifest)
		err = leaseErr
		if err == nil {
			group.Go(func() error { return put(ctx, client, backup.Entry{Key: []byte(leaseKey), Value: value}) })
		}
	}
	// The error of a writer is the cause of the other one.
	if failed := group.Wait(); failed != nil {
		return fmt.Errorf("writing the objects of the backup: %w", failed)
	}
	return err
}

// translate returns what is restored for a key, or false for nothing.
func (r *restore) translate(e backup.Entry) (backup.Entry, bool, error) {
	return translate(e, r.manifest)
}

func translate(e backup.Entry, m *backup.Manifest) (backup.Entry, bool, error) {
	key := string(e.Key)
	if !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) }) {
		return e, false, fmt.Errorf("the backup contains the key %.100q, which is not one of a cluster", key)
	}
	if dropped(key) {
		return e, false, nil
	}
	if key == leaseKey {
		var err error
		e.Value, err = raisedLease(e.Value, m)
		return e, true, err
	}
	return e, true, nil
}

// put creates a key. It accepts a key that has the value already, from an interrupted restore.
func put(ctx context.Context, client *clientv3.Client, e backup.Entry, options ...clientv3.OpOption) error {
	key := string(e.Key)
	done, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).Then(clientv3.OpPut(key, string(e.Value), options...)).Commit()
	if err != nil {
		return fmt.Errorf("storing %s: %w", key, err)
	}
	if done.Succeeded {
		return nil
	}
	answer, err := client.Get(ctx, key)
	if err != nil {
		return fmt.Errorf("reading %s: %w", key, err)
	}
	if len(answer.Kvs) != 1 || !bytes.Equal(answer.Kvs[0].Value, e.Value) {
		return fmt.Errorf("%w: the datastore has the key %s with another value", ErrNotEmpty, key)
	}
	return nil
}

// grants creates leases of the datastore for keys that expire.
type grants struct {
	client *clientv3.Client
	known  map[time.Duration]clientv3.LeaseID
}

func (g *grants) of(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	if ttl <= 0 {
		return clientv3.NoLease, nil
	}
	ttl = ttl.Truncate(time.Minute) + time.Minute // few leases for many keys
	if id, ok := g.known[ttl]; ok {
		return id, nil
	}
	answer, err := g.client.Grant(ctx, int64(ttl/time.Second))
	if err != nil {
		return 0, fmt.Errorf("letting keys expire: %w", err)
	}
	g.known[ttl] = answer.ID
	return answer.ID, nil
}

// files writes the files of the data directory.
func (r *restore) files(ctx context.Context) error {
	var written []string
	_, err := read(ctx, r.open, r.keys, r.manifest, backup.Visitor{File: func(name string, content []byte) error {
		if !slices.Contains(files, name) {
			r.Logger.Warn("ignoring a file of the backup that this version of rik does not know", "file", name)
			return nil
		}
		path := filepath.Join(r.Dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return fmt.Errorf("creating a directory: %w", err)
		}
		written = append(written, name)
		return atomicfile.Write(path, content)
	}})
	if err != nil {
		return err
	}
	for _, name := range files {
		if !optional[name] && !slices.Contains(written, name) {
			return fmt.Errorf("%w: it does not contain the file %s", backup.ErrDamaged, name)
		}
	}
	return nil
}

// end removes the marker, and then completes the record.
func (r *restore) end(ctx context.Context) error {
	err := r.with(ctx, func(client *clientv3.Client) error {
		answer, err := client.Get(ctx, markerKey)
		if err != nil || len(answer.Kvs) == 0 {
			return err
		}
		_, err = client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(markerKey), "=", answer.Kvs[0].ModRevision)).
			Then(clientv3.OpDelete(markerKey)).Else(clientv3.OpGet(markerKey)).Commit()
		return err
	})
	if err != nil {
		return fmt.Errorf("completing the restore: %w", err)
	}
	record, err := ReadRecord(r.Dir)
	if err != nil {
		return err
	}
	if record == nil {
		return fmt.Errorf("completing the restore: %s: %w", filepath.Join(r.Dir, RecordFile), fs.ErrNotExist)
	}
	record.Complete = true
	return writeRecord(r.Dir, *record)
}
