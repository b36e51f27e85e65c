package bench

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"rik.dev/rik/internal/apiserver/datastore/datastoretest"
)

const (
	datastoreWrites  = 300  // one after the other
	datastoreWriters = 32   // at once
	datastoreBulk    = 3000 // writes of all writers together
	datastoreBytes   = 1000 // of one object
	datastoreLists   = 20
)

// BenchmarkDatastores compares all kinds of datastores in one run. The objects have 1 KB, and the
// writes are guarded as those of the API server. All files are on the same disk.
func BenchmarkDatastores(b *testing.B) {
	for _, kind := range datastoretest.Kinds() {
		b.Run(kind.Name, func(b *testing.B) {
			store := kind.New(b).Open(b)
			client := datastoretest.Connect(b, store.Endpoint())
			for range b.N {
				measureDatastore(b, client)
			}
			b.Logf("load at the end: %s", load())
		})
	}
}

func measureDatastore(b *testing.B, client *kubernetes.Client) {
	b.Helper()
	value := []byte(strings.Repeat("x", datastoreBytes))
	create := func(key string) (int64, error) {
		answer, err := client.OptimisticPut(b.Context(), key, value, 0, kubernetes.PutOptions{GetOnFailure: true})
		if err == nil && !answer.Succeeded {
			err = fmt.Errorf("%s exists", key)
		}
		return answer.Revision, err
	}
	prefix := fmt.Sprintf("/registry/bench%d/", time.Now().UnixNano())
	watch := client.Watch(b.Context(), prefix+"one/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	<-watch
	var writes, events []time.Duration
	for i := range datastoreWrites {
		begin := time.Now()
		if _, err := create(fmt.Sprintf("%sone/%04d", prefix, i)); err != nil {
			b.Fatal(err)
		}
		writes = append(writes, time.Since(begin))
		<-watch
		events = append(events, time.Since(begin))
	}
	var group sync.WaitGroup
	begin := time.Now()
	for w := range datastoreWriters {
		group.Go(func() {
			for i := range datastoreBulk / datastoreWriters {
				if _, err := create(fmt.Sprintf("%smany/%02d-%04d", prefix, w, i)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	throughput := float64(datastoreBulk) / time.Since(begin).Seconds()
	var gets, lists []time.Duration
	for i := range datastoreWrites {
		begin := time.Now()
		if _, err := client.Kubernetes.Get(b.Context(), fmt.Sprintf("%sone/%04d", prefix, i), kubernetes.GetOptions{}); err != nil {
			b.Fatal(err)
		}
		gets = append(gets, time.Since(begin))
	}
	for range datastoreLists {
		begin := time.Now()
		if _, err := client.List(b.Context(), prefix+"many/", kubernetes.ListOptions{Limit: 1000}); err != nil {
			b.Fatal(err)
		}
		lists = append(lists, time.Since(begin))
	}
	b.ReportMetric(milliseconds(share(writes, 50)), "write-p50-ms")
	b.ReportMetric(milliseconds(share(writes, 99)), "write-p99-ms")
	b.ReportMetric(milliseconds(share(events, 50)), "write-to-watch-p50-ms")
	b.ReportMetric(throughput, "writes/s")
	b.ReportMetric(milliseconds(share(gets, 50)), "get-p50-ms")
	b.ReportMetric(milliseconds(share(lists, 50)), "list-1000-p50-ms")
}

// share returns a percentile.
func share(of []time.Duration, percent int) time.Duration {
	slices.Sort(of)
	return of[min(len(of)-1, len(of)*percent/100)]
}

// isDatastoreProcess reports whether this process is a member of an etcd cluster of a benchmark.
func isDatastoreProcess() bool { return os.Getenv(datastoretest.EnvMember) != "" }
