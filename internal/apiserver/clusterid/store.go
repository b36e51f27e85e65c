package clusterid

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// key is outside the prefix under which the API server stores objects.
	key = "/rik.dev/cluster"
	// objects is the prefix under which the API server stores all objects.
	objects = "/registry/"
	// health is a key that kine creates in a new database, for Kubernetes' health check.
	health = objects + "health"
	// rootCA is published in every namespace by Kubernetes' controller, and not encrypted.
	rootCA = objects + "configmaps/kube-system/kube-root-ca.crt"
)

// Store accesses the identity in the datastore, through a client that the caller closes.
type Store struct{ Client *clientv3.Client }

// Load reads the identity. It returns nil if the datastore has none.
func (s Store) Load(ctx context.Context) (*Identity, error) {
	data, err := s.get(ctx, key)
	if data == nil || err != nil {
		return nil, err
	}
	var id Identity
	if err := json.Unmarshal(data, &id); err != nil {
		return nil, fmt.Errorf("reading the cluster's identity in the datastore (key %s): %w", key, err)
	}
	return &id, nil
}

func (s Store) get(ctx context.Context, name string) ([]byte, error) {
	answer, err := s.Client.Get(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("reading %s in the datastore: %w", name, err)
	}
	if len(answer.Kvs) == 0 {
		return nil, nil
	}
	return answer.Kvs[0].Value, nil
}

// Empty reports whether the datastore has no objects.
func (s Store) Empty(ctx context.Context) (bool, error) {
	// Two keys are sufficient, because one of them may be kine's own.
	answer, err := s.Client.Get(ctx, objects, clientv3.WithPrefix(), clientv3.WithLimit(2))
	if err != nil {
		return false, fmt.Errorf("looking for objects in the datastore: %w", err)
	}
	for _, kv := range answer.Kvs {
		if string(kv.Key) != health {
			return false, nil
		}
	}
	return true, nil
}

// Fits reports whether the objects belong to a certificate authority, given in PEM.
func (s Store) Fits(ctx context.Context, authority []byte) (bool, error) {
	data, err := s.get(ctx, rootCA)
	return len(authority) > 0 && bytes.Contains(data, bytes.TrimSpace(authority)), err
}

// errRaced is returned when another server stored an identity at the same time.
var errRaced = errors.New("another server stored the cluster's identity at the same time: start this server again")

// Save replaces the identity that was loaded, or nil for none, with another one.
func (s Store) Save(ctx context.Context, before *Identity, id Identity) error {
	data, err := json.Marshal(id)
	if err != nil {
		return fmt.Errorf("encoding the cluster's identity: %w", err)
	}
	revision := int64(0)
	if before != nil {
		if was, err := json.Marshal(before); err == nil && bytes.Equal(was, data) {
			return nil
		}
		answer, err := s.Client.Get(ctx, key)
		if err != nil {
			return fmt.Errorf("reading %s in the datastore: %w", key, err)
		}
		if len(answer.Kvs) == 1 {
			revision = answer.Kvs[0].ModRevision
		}
	}
	txn := s.Client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).Then(clientv3.OpPut(key, string(data)))
	if revision != 0 { // kine needs Else for an update and refuses it for a create
		txn = txn.Else(clientv3.OpGet(key))
	}
	done, err := txn.Commit()
	if err != nil {
		return fmt.Errorf("storing the cluster's identity: %w", err)
	}
	if !done.Succeeded {
		return errRaced
	}
	return nil
}
