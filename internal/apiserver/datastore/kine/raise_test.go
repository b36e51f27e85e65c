package kine

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"rik.dev/rik/internal/testkit/database"
)

// TestRaiseDatabases: the revision of each SQL database is raised, stays so, and a watch from an
// older one is refused. Package datastore tests the same with SQLite and etcd.
func TestRaiseDatabases(t *testing.T) {
	t.Parallel()
	const floor = 5_000_000_000 // more than 32 bits
	for name, start := range map[string]func(testing.TB) *database.Server{"PostgreSQL": database.PostgreSQL, "MariaDB": database.MariaDB} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Source: start(t).Source, SocketDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			use(t, cfg, func(c *clientv3.Client) {
				if err := put(ctx, c, "/registry/a", "1"); err != nil {
					t.Fatal(err)
				}
			})
			for range 2 {
				if err := Raise(ctx, cfg, floor); err != nil {
					t.Fatal(err)
				}
			}
			for _, key := range []string{"/registry/b", "/registry/c"} {
				use(t, cfg, func(c *clientv3.Client) {
					if err := get(ctx, c, "/registry/a", "1"); err != nil {
						t.Error(err)
					}
					answer, err := c.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).Then(clientv3.OpPut(key, "2")).Commit()
					if err != nil || answer.Header.Revision <= floor {
						t.Errorf("the next revision is %v, %v, want more than %d", answer, err, int64(floor))
					}
					if answer := <-c.Watch(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithRev(2)); !errors.Is(answer.Err(), rpctypes.ErrCompacted) {
						t.Errorf("a watch from revision 2: %v, want ErrCompacted", answer.Err())
					}
				})
			}
		})
	}
}
