package recovery

import (
	"errors"
	"net/url"
	"path/filepath"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"rik.dev/rik/internal/apiserver/datastore"
	"rik.dev/rik/internal/apiserver/datastore/etcd"
	"rik.dev/rik/internal/backup"
)

// external starts an etcd that listens on loopback, with its files in dir/etcd.
func external(t *testing.T, dir string) (endpoint string, stop func()) {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel = filepath.Join(dir, "etcd"), "fatal"
	any, peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}, url.URL{Scheme: "http", Host: "127.0.0.1:1"}
	cfg.ListenClientUrls, cfg.ListenPeerUrls = []url.URL{any}, []url.URL{any}
	cfg.AdvertiseClientUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	<-server.Server.ReadyNotify()
	return "http://" + server.Clients[0].Addr().String(), server.Close
}

// TestRestoreIntoAnExternalEtcd: an external etcd whose revision is too low is refused, and stays
// empty. After its revision was raised, the same command restores into it, with the same bound.
func TestRestoreIntoAnExternalEtcd(t *testing.T) {
	t.Parallel()
	dir, files := dataDir(t), t.TempDir()
	var file []byte
	use(t, config(dir, ""), func(c *clientv3.Client) {
		fillStore(t, c, 1200)
		file = create(t, dir, c, "")
	})
	endpoint, stop := external(t, files)
	to := target(t.TempDir(), endpoint)
	for range 2 {
		if _, err := Restore(t.Context(), to, opener(file), backup.Identities{}); !errors.Is(err, datastore.ErrRevision) {
			t.Fatalf("Restore() into a new etcd = %v, want ErrRevision", err)
		}
	}
	use(t, to.Datastore, func(c *clientv3.Client) {
		answer, err := c.Get(t.Context(), "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly())
		if err != nil || answer.Count != 0 {
			t.Errorf("the refused restore left %v keys, %v", answer, err)
		}
	})
	stop()
	record, err := ReadRecord(to.Dir)
	if err != nil || record == nil {
		t.Fatalf("ReadRecord() = %v, %v", record, err)
	}
	if err := etcd.Raise(files, record.Floor); err != nil { // as etcdutl does it
		t.Fatal(err)
	}
	endpoint, stop = external(t, files)
	defer stop()
	to.Datastore.Endpoint = endpoint // the port is another one
	m, err := Restore(t.Context(), to, opener(file), backup.Identities{})
	if err != nil {
		t.Fatal(err)
	}
	use(t, to.Datastore, func(c *clientv3.Client) { wantRestored(t, c, m) })
}
