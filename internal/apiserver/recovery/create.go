// Package recovery creates backups of a cluster, restores them, and verifies them.
//
// [Create] reads all keys of the datastore at one revision, and the files of the data directory.
// [Restore] verifies a whole backup, and then writes it into an empty data directory and an empty
// datastore of any kind. [Compare] compares a datastore with a backup, key by key.
//
// A restored cluster is newer than everything that its nodes and clients have seen: its term and
// its revisions continue far above those of the backup. A restore that was interrupted leaves a
// record, with which a server refuses to start ([Unfinished]).
package recovery

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"rik.dev/rik/internal/apiserver/datastore/checksum"
	"rik.dev/rik/internal/backup"
)

// prefixes are those of all keys of a cluster. Keys elsewhere belong to the datastore, such as
// those of compaction.
var prefixes = []string{"/registry/", "/rik.dev/"}

// files are the files of a data directory that a new server needs. A new server issues all
// certificates again, except that of the authority.
var files = []string{
	"cluster.json", "encryption.yaml", "node-token", "pki/ca.crt", "pki/ca.key", "pki/service-account.key", "profile",
}

// optional are those of them that a data directory may lack.
var optional = map[string]bool{"node-token": true}

const (
	// pageKeys and pageBytes bound one page of keys.
	pageKeys  = 500
	pageBytes = 8 << 20
)

// Source is a cluster.
type Source struct {
	Client *clientv3.Client
	// Dir is the data directory.
	Dir string
	// Header has the version, the cluster, the profile and the datastore. Create sets the rest.
	Header backup.Header
}

// Create writes a backup. open creates its writer when the header is complete, so that nothing is
// written before the datastore has answered.
func Create(ctx context.Context, from Source, open func(backup.Header) (*backup.Writer, error)) (*backup.Manifest, error) {
	header := from.Header
	header.Created = time.Now()
	answer, err := from.Client.Get(ctx, leaseKey)
	if err != nil {
		return nil, fmt.Errorf("reading the revision of the datastore: %w", err)
	}
	header.Revision = answer.Header.Revision
	if len(answer.Kvs) == 1 {
		if header.Term, err = termOf(answer.Kvs[0].Value); err != nil {
			return nil, err
		}
	}
	w, err := open(header)
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		content, err := os.ReadFile(filepath.Join(from.Dir, filepath.FromSlash(name)))
		if errors.Is(err, fs.ErrNotExist) && optional[name] {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("adding a file to the backup: %w", err)
		}
		if err := w.AddFile(name, content); err != nil {
			return nil, err
		}
	}
	lives := &lifetimes{client: from.Client, known: map[int64]time.Duration{}}
	err = walk(ctx, from.Client, header.Revision, func(kv *mvccpb.KeyValue) error {
		ttl, err := lives.of(ctx, kv.Lease)
		if err != nil {
			return err
		}
		// A backup with a damaged object would be found only at its restore.
		if _, _, err := checksum.Check(string(kv.Key), kv.Value); err != nil {
			return err
		}
		return w.AddEntry(backup.Entry{Key: kv.Key, Value: kv.Value, TTL: ttl})
	})
	if err != nil {
		return nil, err
	}
	return w.Close()
}

// walk calls visit for all keys at a revision, in the order of prefixes and keys.
func walk(ctx context.Context, client *clientv3.Client, revision int64, visit func(*mvccpb.KeyValue) error) error {
	for _, prefix := range prefixes {
		next, end, limit := prefix, clientv3.GetPrefixRangeEnd(prefix), int64(pageKeys)
		for {
			page, err := client.Get(ctx, next, clientv3.WithRange(end), clientv3.WithRev(revision), clientv3.WithLimit(limit))
			if errors.Is(err, rpctypes.ErrCompacted) {
				return fmt.Errorf("reading the datastore at revision %d: it was compacted in the meantime, which happens after 5 to 10 minutes: try again, on a faster connection to where the backup is written: %w", revision, err)
			}
			if err != nil {
				return fmt.Errorf("reading the datastore at revision %d: %w", revision, err)
			}
			size := 0
			for _, kv := range page.Kvs {
				size += len(kv.Value)
				if err := visit(kv); err != nil {
					return err
				}
			}
			if !page.More || len(page.Kvs) == 0 {
				break
			}
			next = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
			limit = nextLimit(limit, len(page.Kvs), size)
		}
	}
	return nil
}

// nextLimit returns the number of keys of the next page, for pages of at most pageBytes if
// possible.
func nextLimit(limit int64, keys, size int) int64 {
	if size > pageBytes {
		return max(limit/2, 1)
	}
	return max(min(int64(pageKeys), int64(pageBytes/max(size/max(keys, 1), 1))), 1)
}

// lifetimes are the remaining times of the datastore's leases. They have nothing to do with the
// API's Leases.
type lifetimes struct {
	client *clientv3.Client
	known  map[int64]time.Duration
}

// longestTTL is more than the API server's lifetime of an Event, and less than any random ID of a
// lease.
const longestTTL = 7 * 24 * time.Hour

func (l *lifetimes) of(ctx context.Context, lease int64) (time.Duration, error) {
	if lease == 0 {
		return 0, nil
	}
	if ttl, ok := l.known[lease]; ok {
		return ttl, nil
	}
	ttl := time.Duration(lease) * time.Second
	if lease > int64(longestTTL/time.Second) { // otherwise it is one of kine, where it is the time itself
		answer, err := l.client.TimeToLive(ctx, clientv3.LeaseID(lease))
		if err != nil {
			return 0, fmt.Errorf("reading how long keys of the datastore live: %w", err)
		}
		ttl = max(time.Duration(answer.TTL)*time.Second, time.Second) // -1: it has expired since
	}
	l.known[lease] = ttl
	return ttl, nil
}
