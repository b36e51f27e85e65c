package datastore

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// use opens the datastore, calls do with a client of it, and closes it.
func use(t *testing.T, cfg Config, do func(*clientv3.Client)) {
	t.Helper()
	store, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	client, err := store.Endpoint().Client(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	do(client)
}

func create(t *testing.T, c *clientv3.Client, key, value string) int64 {
	t.Helper()
	done, err := c.Txn(t.Context()).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).Then(clientv3.OpPut(key, value)).Commit()
	if err != nil || !done.Succeeded {
		t.Fatalf("storing %s: %v", key, err)
	}
	return done.Header.Revision
}

// TestRaise: after the revision was raised, objects stay, the next write has a higher revision, a
// watch from an older one is refused, and the datastore continues so after another restart.
func TestRaise(t *testing.T) {
	t.Parallel()
	const floor = 5_000_000_000 // more than 32 bits
	for name, endpoint := range map[string]string{"etcd": "", "sqlite": "sqlite://"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Endpoint: endpoint, Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}
			var before int64
			use(t, cfg, func(c *clientv3.Client) {
				create(t, c, "/registry/a", "1")
				before = create(t, c, "/registry/b", "2")
			})
			for range 2 {
				if err := Raise(t.Context(), cfg, floor); err != nil {
					t.Fatal(err)
				}
			}
			use(t, cfg, func(c *clientv3.Client) {
				list, err := c.Get(t.Context(), "/registry/", clientv3.WithPrefix())
				if err != nil || list.Header.Revision < floor {
					t.Fatalf("the revision is %d (%v), want at least %d", list.Header.Revision, err, int64(floor))
				}
				var keys []string
				for _, kv := range list.Kvs {
					if string(kv.Key) != "/registry/health" {
						keys = append(keys, string(kv.Key)+string(kv.Value))
					}
				}
				if got := strings.Join(keys, " "); got != "/registry/a1 /registry/b2" {
					t.Errorf("the objects are %s", got)
				}
				answer := <-c.Watch(t.Context(), "/registry/", clientv3.WithPrefix(), clientv3.WithRev(before))
				if !errors.Is(answer.Err(), rpctypes.ErrCompacted) {
					t.Errorf("a watch from revision %d: %v, want ErrCompacted", before, answer.Err())
				}
				if got := create(t, c, "/registry/c", "3"); got <= floor {
					t.Errorf("the next revision is %d, want more than %d", got, int64(floor))
				}
				watch := c.Watch(t.Context(), "/registry/", clientv3.WithPrefix(), clientv3.WithRev(floor+1))
				answer = <-watch
				if answer.Err() != nil || len(answer.Events) == 0 || string(answer.Events[0].Kv.Key) != "/registry/c" {
					t.Errorf("a watch from the new revision: %v, %v", answer.Events, answer.Err())
				}
				if _, err := c.Compact(t.Context(), floor+1); err != nil {
					t.Errorf("compacting: %v", err)
				}
			})
			use(t, cfg, func(c *clientv3.Client) {
				if got := create(t, c, "/registry/d", "4"); got <= floor+1 {
					t.Errorf("the revision after another restart is %d, want more than %d", got, int64(floor)+1)
				}
			})
		})
	}
}

func TestCheckRevision(t *testing.T) {
	t.Parallel()
	external := Config{Endpoint: "https://etcd:2379"}
	if err := CheckRevision(external, 5, 10); !errors.Is(err, ErrRevision) || !strings.Contains(err.Error(), "--bump-revision 10 --mark-compacted") {
		t.Errorf("CheckRevision() = %v, want the commands", err)
	}
	if err := CheckRevision(external, 10, 10); err != nil {
		t.Errorf("CheckRevision() of a high revision = %v", err)
	}
	if err := CheckRevision(Config{}, 5, 10); err != nil {
		t.Errorf("CheckRevision() of the embedded etcd = %v", err)
	}
}
