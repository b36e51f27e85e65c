// Package terms makes etcd refuse the writes of a controller whose term is over.
//
// The term of the active controller is stored under one key. A write of a term compares that
// key in its own transaction, so that no other write can come in between. A controller that was
// stopped or cut off, and has not detected that another one is active, changes nothing, however
// late its request arrives. Writes without a term are unchanged.
//
// This needs etcd transactions with more than one comparison. kine, which serves the SQL
// datastores, refuses those. There a controller only checks its lease before each write.
package terms

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	_ "unsafe" // for go:linkname

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	_ "k8s.io/apiserver/pkg/storage/storagebackend/factory" // its client is replaced

	"rik.dev/rik/internal/controllerterm"
)

// Key holds the highest term that has written, in decimal.
const Key = "/rik.dev/term"

// Client wraps the operations that Kubernetes' storage needs. Reads are passed on.
type Client struct {
	kubernetes.Interface
	kv clientv3.KV

	// established is the highest term that this client has seen under Key.
	established atomic.Int64
	mu          sync.Mutex // serializes establish
}

// Wrap returns a client that refuses the writes of terms that are over.
func Wrap(c *kubernetes.Client) *Client {
	return &Client{Interface: c.Kubernetes, kv: c.KV}
}

// OptimisticPut implements kubernetes.Interface.
func (c *Client) OptimisticPut(ctx context.Context, key string, value []byte, expected int64, opts kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	number := controllerterm.From(ctx)
	if number == 0 {
		return c.Interface.OptimisticPut(ctx, key, value, expected, opts)
	}
	put := clientv3.OpPut(key, string(value), clientv3.WithLease(opts.LeaseID))
	answer, found, err := c.write(ctx, number, key, expected, put)
	if err != nil {
		return kubernetes.PutResponse{}, err
	}
	out := kubernetes.PutResponse{Succeeded: answer.Succeeded, Revision: answer.Header.Revision}
	if opts.GetOnFailure {
		out.KV = found
	}
	return out, nil
}

// OptimisticDelete implements kubernetes.Interface.
func (c *Client) OptimisticDelete(ctx context.Context, key string, expected int64, opts kubernetes.DeleteOptions) (kubernetes.DeleteResponse, error) {
	number := controllerterm.From(ctx)
	if number == 0 {
		return c.Interface.OptimisticDelete(ctx, key, expected, opts)
	}
	answer, found, err := c.write(ctx, number, key, expected, clientv3.OpDelete(key))
	if err != nil {
		return kubernetes.DeleteResponse{}, err
	}
	out := kubernetes.DeleteResponse{Succeeded: answer.Succeeded, Revision: answer.Header.Revision}
	if opts.GetOnFailure {
		out.KV = found
	}
	return out, nil
}

// write performs one operation if the key has the expected revision and the term is not over.
// found is the current value of the key if the revision differs.
func (c *Client) write(ctx context.Context, number int64, key string, expected int64, op clientv3.Op) (*clientv3.TxnResponse, *mvccpb.KeyValue, error) {
	if err := c.establish(ctx, number); err != nil {
		return nil, nil, err
	}
	answer, err := c.kv.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", expected), clientv3.Compare(clientv3.Value(Key), "=", text(number))).
		Then(op).
		Else(clientv3.OpGet(key), clientv3.OpGet(Key)).
		Commit()
	if err != nil || answer.Succeeded {
		return answer, nil, err
	}
	if len(answer.Responses) != 2 {
		return nil, nil, fmt.Errorf("etcd answered a transaction with %d responses instead of 2", len(answer.Responses))
	}
	now, _, err := parse(answer.Responses[1].GetResponseRange().GetKvs())
	if err != nil {
		return nil, nil, err
	}
	if now != number {
		return nil, nil, over(number, now)
	}
	if kvs := answer.Responses[0].GetResponseRange().GetKvs(); len(kvs) == 1 {
		return answer, kvs[0], nil
	}
	return answer, nil, nil
}

// establish stores a term as the current one, unless a higher one has begun.
func (c *Client) establish(ctx context.Context, number int64) error {
	if seen := c.established.Load(); seen == number {
		return nil
	} else if seen > number {
		return over(number, seen)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		answer, err := c.kv.Get(ctx, Key)
		if err != nil {
			return err
		}
		now, revision, err := parse(answer.Kvs)
		if err != nil {
			return err
		}
		if now >= number {
			c.established.Store(now)
			if now > number {
				return over(number, now)
			}
			return nil
		}
		done, err := c.kv.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(Key), "=", revision)).
			Then(clientv3.OpPut(Key, text(number))).Commit()
		if err != nil {
			return err
		}
		if done.Succeeded {
			c.established.Store(number)
			return nil
		}
	}
}

func text(number int64) string { return strconv.FormatInt(number, 10) }

func parse(kvs []*mvccpb.KeyValue) (number, revision int64, err error) {
	if len(kvs) == 0 {
		return 0, 0, nil
	}
	number, err = strconv.ParseInt(string(kvs[0].Value), 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("the datastore's key %s is not a term: %q", Key, kvs[0].Value)
	}
	return number, kvs[0].ModRevision, nil
}

// over returns a conflict for an HTTP client, because the server has no fault.
func over(number, now int64) error {
	err := apierrors.NewConflict(schema.GroupResource{Resource: "terms"}, text(number),
		fmt.Errorf("term %d has begun: another controller is the active one", now))
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: controllerterm.CauseOver, Message: text(now)}}
	return err
}

// newETCD3Client is the function with which Kubernetes' storage creates its clients. It has no
// option for a custom client, and copying the whole factory for two methods would be worse.
//
//go:linkname newETCD3Client k8s.io/apiserver/pkg/storage/storagebackend/factory.newETCD3Client
var newETCD3Client func(storagebackend.TransportConfig) (*kubernetes.Client, error)

var (
	guardMu sync.Mutex
	guarded = map[string]bool{}
	once    sync.Once
)

// Guard makes the API server's storage refuse the writes of terms that are over, in the etcd
// with the given servers. Call it before the storage is created.
func Guard(servers []string) {
	guardMu.Lock()
	for _, s := range servers {
		guarded[s] = true
	}
	guardMu.Unlock()
	once.Do(func() {
		plain := newETCD3Client
		newETCD3Client = func(c storagebackend.TransportConfig) (*kubernetes.Client, error) {
			client, err := plain(c)
			if err != nil || !isGuarded(c.ServerList) {
				return client, err
			}
			client.Kubernetes = Wrap(client)
			return client, nil
		}
	})
}

func isGuarded(servers []string) bool {
	guardMu.Lock()
	defer guardMu.Unlock()
	for _, s := range servers {
		if guarded[s] {
			return true
		}
	}
	return false
}
