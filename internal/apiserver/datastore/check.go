package datastore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	clientv3 "go.etcd.io/etcd/client/v3"

	"rik.dev/rik/internal/apiserver/datastore/checksum"
	"rik.dev/rik/internal/apiserver/datastore/etcd"
	"rik.dev/rik/internal/atomicfile"
)

// Check reads a datastore. The embedded etcd and a SQLite file must not be in use. An embedded
// etcd is not changed; another datastore is opened, and its objects are read at one revision.
func Check(ctx context.Context, cfg Config) (o checksum.Objects, err error) {
	if err := cfg.Validate(); err != nil {
		return o, err
	}
	k, err := cfg.kind()
	if err != nil {
		return o, err
	}
	if k == embeddedEtcd {
		return etcd.Check(cfg.Dir)
	}
	cfg.serveDamaged = true
	err = withClient(ctx, cfg, func(client *clientv3.Client) error {
		return scan(ctx, client, func(key string, value []byte, _ int64) error {
			o.Add(key, value)
			return nil
		})
	})
	if damage := o.Err(); damage != nil {
		err = errors.Join(fmt.Errorf("%w; next: %s", damage, checksum.Next), err)
	}
	return o, err
}

// Repair removes the objects that do not match their checksums, after it has saved each one in a
// file in the directory dir, whose name it returns with the key. The datastore must not be in use.
func Repair(ctx context.Context, cfg Config, dir string) (removed map[string]string, err error) {
	cfg.serveDamaged = true
	removed = map[string]string{}
	err = withClient(ctx, cfg, func(client *clientv3.Client) error {
		var revision int64
		err := scan(ctx, client, func(key string, value []byte, modified int64) error {
			if _, _, err := checksum.Check(key, value); err == nil {
				return nil
			}
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return err
			}
			name := filepath.Join(dir, fmt.Sprintf("object-%d", modified))
			if err := atomicfile.Write(name, append([]byte(key+"\n"), value...)); err != nil {
				return fmt.Errorf("saving the object %s: %w", key, err)
			}
			// kine deletes in this form of a transaction only.
			deleted, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", modified)).
				Then(clientv3.OpDelete(key)).Else(clientv3.OpGet(key)).Commit()
			if err == nil && !deleted.Succeeded {
				err = errors.New("it has changed meanwhile")
			}
			if err != nil {
				return fmt.Errorf("removing the object %s: %w", key, err)
			}
			revision = deleted.Header.Revision
			removed[key] = name
			return nil
		})
		if err != nil {
			return err
		}
		if revision == 0 { // an old revision or a deletion may be damaged
			now, err := client.Get(ctx, registry, clientv3.WithCountOnly())
			if err != nil {
				return err
			}
			revision = now.Header.Revision
		}
		_, err = client.Compact(ctx, revision, clientv3.WithCompactPhysical())
		return err
	})
	return removed, err
}

// registry is the prefix of the keys of API objects.
const registry = "/registry/"

// pageObjects is the number of objects that scan reads at once.
const pageObjects = 500

// scan calls visit for every API object at one revision, in the order of the keys.
func scan(ctx context.Context, client *clientv3.Client, visit func(key string, value []byte, modified int64) error) error {
	from, end, revision := registry, clientv3.GetPrefixRangeEnd(registry), int64(0)
	for {
		page, err := client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(pageObjects), clientv3.WithRev(revision))
		if err != nil {
			return fmt.Errorf("reading the stored objects: %w", err)
		}
		if revision == 0 {
			revision = page.Header.Revision
		}
		for _, kv := range page.Kvs {
			if err := visit(string(kv.Key), kv.Value, kv.ModRevision); err != nil {
				return err
			}
		}
		if !page.More || len(page.Kvs) == 0 {
			return nil
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

func withClient(ctx context.Context, cfg Config, use func(*clientv3.Client) error) error {
	d, err := Open(ctx, cfg)
	if err != nil {
		return err
	}
	err = use(d.client)
	return errors.Join(err, d.Close())
}
