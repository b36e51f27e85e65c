package recovery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"rik.dev/rik/internal/backup"
)

// ErrDiffers is returned for a datastore with other keys than the backup.
var ErrDiffers = errors.New("the restored datastore differs from the backup")

// compare compares a restored datastore with a backup, key by key, and value by value.
func compare(ctx context.Context, client *clientv3.Client, open Opener, keys backup.Identities, m *backup.Manifest) error {
	answer, err := client.Get(ctx, markerKey)
	if err != nil {
		return fmt.Errorf("reading the revision of the datastore: %w", err)
	}
	var failed error
	stored := func(yield func(*mvccpb.KeyValue) bool) {
		failed = walk(ctx, client, answer.Header.Revision, func(kv *mvccpb.KeyValue) error {
			if key := string(kv.Key); dropped(key) {
				return nil
			}
			if !yield(kv) {
				return errStopped
			}
			return nil
		})
	}
	next, stop := iter.Pull(stored)
	defer stop()
	sawLease := false
	_, err = read(ctx, open, keys, m, backup.Visitor{Entry: func(e backup.Entry) error {
		e, ok, err := translate(e, m)
		if !ok || err != nil {
			return err
		}
		kv, more := next()
		if more && !sawLease && string(kv.Key) == leaseKey && string(e.Key) != leaseKey {
			sawLease = true // the restore has added it
			kv, more = next()
		}
		sawLease = sawLease || string(e.Key) == leaseKey
		switch {
		case !more && failed != nil:
			return failed
		case !more || !bytes.Equal(kv.Key, e.Key):
			return fmt.Errorf("%w: it lacks %s", ErrDiffers, e.Key)
		case !bytes.Equal(kv.Value, e.Value):
			return fmt.Errorf("%w: %s has another value", ErrDiffers, e.Key)
		}
		return nil
	}})
	if err != nil {
		return err
	}
	for kv, more := next(); more; kv, more = next() {
		if string(kv.Key) != leaseKey {
			return fmt.Errorf("%w: it has %s, which the backup lacks", ErrDiffers, kv.Key)
		}
	}
	return failed
}

var errStopped = errors.New("the comparison has ended")
