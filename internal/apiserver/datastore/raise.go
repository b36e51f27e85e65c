package datastore

import (
	"context"
	"errors"
	"fmt"

	"rik.dev/rik/internal/apiserver/datastore/etcd"
	"rik.dev/rik/internal/apiserver/datastore/kine"
)

// ErrRevision is returned for a datastore whose revision cannot be raised from here.
var ErrRevision = errors.New("the revision of the datastore is too low")

// Raise makes the next revision of a closed datastore higher than floor, so that it has never been
// given out before, and refuses watches from all revisions up to it. Raise the revision of an
// external etcd with etcdutl before anything is stored in it; see CheckRevision.
func Raise(ctx context.Context, cfg Config, floor int64) error {
	k, err := cfg.kind()
	if err != nil {
		return err
	}
	switch k {
	case embeddedEtcd:
		return etcd.Raise(cfg.Dir, floor)
	case sqlDatabase:
		return withoutPassword(kine.Raise(ctx, kine.Config{
			Source: cfg.Endpoint, Dir: cfg.Dir, CAFile: cfg.CAFile, CertFile: cfg.CertFile, KeyFile: cfg.KeyFile, Logger: cfg.Logger,
		}, floor), cfg.Endpoint)
	default:
		return nil
	}
}

// CheckRevision returns ErrRevision with the next step if Raise cannot raise the revision above
// floor, which is the case for an external etcd with the current revision now.
func CheckRevision(cfg Config, now, floor int64) error {
	if k, err := cfg.kind(); err != nil || k != externalEtcd || now >= floor {
		return err
	}
	return fmt.Errorf(`%w: %s has the revision %d, and must continue above %d, because clients of the former datastore remember its revisions. Only etcdutl can raise the revision of an external etcd. On each of its members, with all of them empty:
  etcdctl --endpoints ENDPOINT snapshot save empty.db      (once, on one member)
  systemctl stop etcd
  mv DATA-DIR DATA-DIR.old
  etcdutl snapshot restore empty.db --bump-revision %d --mark-compacted --data-dir DATA-DIR --name NAME --initial-cluster CLUSTER --initial-advertise-peer-urls URL
  systemctl start etcd
Then start the server again with the same flags`, ErrRevision, cfg.Describe(), now, floor, floor)
}

// Kind returns the kind of datastore for people: etcd, sqlite, postgres or mysql.
func (c Config) Kind() string {
	k, err := c.kind()
	switch {
	case err != nil:
		return "unknown"
	case k == sqlDatabase:
		return c.scheme()
	default:
		return "etcd"
	}
}
