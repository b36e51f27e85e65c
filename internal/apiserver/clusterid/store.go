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
	// key is beside what the API server stores, not below it.
	key = "/rik.dev/cluster"
	// objects is where the API server stores everything.
	objects = "/registry/"
	// health is what kine makes in a new database, for Kubernetes' health check.
	health = objects + "health"
	// rootCA is published in every namespace by Kubernetes' controller, and not encrypted.
	rootCA = objects + "configmaps/kube-system/kube-root-ca.crt"
)

// Store is the datastore's part, through a client that the caller closes.
type Store struct{ Client *clientv3.Client }

// Load reads the identity; nil: the datastore has none.
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
		return nil, fmt.Errorf("asking the datastore for %s: %w", name, err)
	}
	if len(answer.Kvs) == 0 {
		return nil, nil
	}
	return answer.Kvs[0].Value, nil
}

// Empty says whether the datastore has no objects.
func (s Store) Empty(ctx context.Context) (bool, error) {
	// The answer is in the first two keys: one of them may be kine's own.
	answer, err := s.Client.Get(ctx, objects, clientv3.WithPrefix(), clientv3.WithLimit(2))
	if err != nil {
		return false, fmt.Errorf("asking the datastore whether it has objects: %w", err)
	}
	for _, kv := range answer.Kvs {
		if string(kv.Key) != health {
			return false, nil
		}
	}
	return true, nil
}

// Fits says whether the objects belong to a certificate authority, given in PEM.
func (s Store) Fits(ctx context.Context, authority []byte) (bool, error) {
	data, err := s.get(ctx, rootCA)
	return len(authority) > 0 && bytes.Contains(data, bytes.TrimSpace(authority)), err
}

// errRaced is returned when another server stored an identity at the same time.
var errRaced = errors.New("another server stored the cluster's identity at the same time: start this one again")

// Save stores an identity in place of the one that was loaded, nil for none.
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
			return fmt.Errorf("asking the datastore for %s: %w", key, err)
		}
		if len(answer.Kvs) == 1 {
			revision = answer.Kvs[0].ModRevision
		}
	}
	txn := s.Client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).Then(clientv3.OpPut(key, string(data)))
	if revision != 0 { // kine takes a create without Else, and an update only with it
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
