package datastore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"rik.dev/rik/internal/apiserver/datastore/checksum"
	"rik.dev/rik/internal/apiserver/datastore/etcd"
	"rik.dev/rik/internal/atomicfile"
)

// Objects counts the stored objects that Check has read, with and without a checksum, and names
// the damaged ones. Objects that were stored before rik had checksums have none, and keys that
// are not API objects never do.
type Objects struct {
	Checked, Unchecked int
	Damaged            []string
}

// Check reads a datastore. The embedded etcd and a SQLite file must not be in use. An embedded
// etcd is not changed; another datastore is opened, and its objects are read at one revision.
func Check(ctx context.Context, cfg Config) (Objects, error) {
	if err := cfg.Validate(); err != nil {
		return Objects{}, err
	}
	if k, err := cfg.kind(); err != nil || k == embeddedEtcd {
		if err != nil {
			return Objects{}, err
		}
		found, err := etcd.Check(cfg.Dir)
		return Objects(found), err
	}
	var o Objects
	cfg.serveDamaged = true
	err := withClient(ctx, cfg, func(client *clientv3.Client) (err error) {
		o, err = checkObjects(ctx, client)
		return err
	})
	return o, errors.Join(o.err(), err)
}

func checkObjects(ctx context.Context, client *clientv3.Client) (o Objects, err error) {
	err = scan(ctx, client, func(key string, value []byte, _ int64) error {
		_, checked, err := checksum.Check(key, value)
		switch {
		case err != nil:
			o.Damaged = append(o.Damaged, key)
		case checked:
			o.Checked++
		default:
			o.Unchecked++
		}
		return nil
	})
	return o, err
}

func (o Objects) err() error {
	if err := etcd.Objects(o).Err(); err != nil {
		return fmt.Errorf("%w; next: %s", err, etcd.NextForObjects)
	}
	return nil
}

// checkObjects returns an error that names the damaged objects.
func (d *Datastore) checkObjects(ctx context.Context) error {
	client, err := d.endpoint.Client(zap.NewNop())
	if err != nil {
		return err
	}
	o, err := checkObjects(ctx, client)
	return errors.Join(o.err(), err, client.Close())
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
	client, err := d.Endpoint().Client(zap.NewNop())
	if err != nil {
		return errors.Join(err, d.Close())
	}
	err = use(client)
	return errors.Join(err, client.Close(), d.Close())
}
