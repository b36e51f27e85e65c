package terms_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"rik.dev/rik/internal/apiserver/datastore/etcd"
	"rik.dev/rik/internal/apiserver/datastore/terms"
	"rik.dev/rik/internal/controllerterm"
)

// start runs an etcd for one test.
func start(t *testing.T) (endpoint string, client *kubernetes.Client) {
	t.Helper()
	server, err := etcd.Start(t.Context(), etcd.Config{Dir: t.TempDir(), SocketDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	if client, err = kubernetes.New(clientv3.Config{Endpoints: []string{server.Endpoint()}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return server.Endpoint(), client
}

func isOver(err error) bool {
	if !apierrors.IsConflict(err) {
		return false
	}
	_, has := apierrors.StatusCause(err, controllerterm.CauseOver)
	return has
}

// TestOlderTermsWriteNothing: every write of an older term is refused from the first write of a
// newer one, even by a client that has not seen the newer term. Writes without a term continue.
func TestOlderTermsWriteNothing(t *testing.T) {
	t.Parallel()
	_, plain := start(t)
	older, newer := terms.Wrap(plain), terms.Wrap(plain)
	one, two := controllerterm.With(t.Context(), 1), controllerterm.With(t.Context(), 2)
	put := func(ctx context.Context, c *terms.Client, key string, revision int64) (kubernetes.PutResponse, error) {
		return c.OptimisticPut(ctx, key, []byte("x"), revision, kubernetes.PutOptions{GetOnFailure: true})
	}
	first, err := put(one, older, "/a", 0)
	if err != nil || !first.Succeeded {
		t.Fatalf("the first write of term 1: %v, %v", first, err)
	}
	// A write that expects another revision gets the same response as a write without a term.
	if again, err := put(one, older, "/a", 0); err != nil || again.Succeeded || again.KV == nil || again.KV.ModRevision != first.Revision {
		t.Errorf("a write over another revision: %v, %v, want it refused with what is there", again, err)
	}
	if done, err := put(two, newer, "/b", 0); err != nil || !done.Succeeded {
		t.Fatalf("the first write of term 2: %v, %v", done, err)
	}
	if done, err := put(one, older, "/a", first.Revision); !isOver(err) || done.Succeeded {
		t.Errorf("an update of term 1 after that: %v, %v, want it refused", done, err)
	}
	if done, err := put(one, older, "/c", 0); !isOver(err) || done.Succeeded {
		t.Errorf("a creation of term 1: %v, %v, want it refused", done, err)
	}
	if done, err := older.OptimisticDelete(one, "/a", first.Revision, kubernetes.DeleteOptions{}); !isOver(err) || done.Succeeded {
		t.Errorf("a deletion of term 1: %v, %v, want it refused", done, err)
	}
	if done, err := put(t.Context(), older, "/a", first.Revision); err != nil || !done.Succeeded {
		t.Errorf("a write of no term: %v, %v, want it done", done, err)
	}
	if done, err := newer.OptimisticDelete(two, "/b", 0, kubernetes.DeleteOptions{GetOnFailure: true}); err != nil || done.Succeeded || done.KV == nil {
		t.Errorf("a deletion of another revision: %v, %v, want it refused with what is there", done, err)
	}
	if err := over(one, t, older); !isOver(err) {
		t.Errorf("later writes of term 1: %v, want the same without asking", err)
	}
}

func over(ctx context.Context, t *testing.T, c *terms.Client) error {
	t.Helper()
	_, err := c.OptimisticPut(ctx, "/z", nil, 0, kubernetes.PutOptions{})
	return err
}

// TestTermsOnlyRise: if several terms begin at once, the highest remains. No write of a lower
// term follows a write of a higher one.
func TestTermsOnlyRise(t *testing.T) {
	t.Parallel()
	_, plain := start(t)
	var group sync.WaitGroup
	for number := int64(1); number <= 8; number++ {
		group.Go(func() {
			c := terms.Wrap(plain)
			for i := range 20 {
				_, err := c.OptimisticPut(controllerterm.With(t.Context(), number), fmt.Sprintf("/w/%03d-%03d", number, i), []byte(fmt.Sprint(number)), 0, kubernetes.PutOptions{})
				if err != nil && !isOver(err) {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	answer, err := plain.KV.Get(t.Context(), "/w/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortAscend))
	if err != nil {
		t.Fatal(err)
	}
	last := ""
	for _, kv := range answer.Kvs {
		if string(kv.Value) < last {
			t.Errorf("a write of term %s came after one of term %s", kv.Value, last)
		}
		last = string(kv.Value)
	}
	if last != "8" {
		t.Errorf("the last term is %q, want 8", last)
	}
}

// TestTheServersStorageIsGuarded: Kubernetes' own factory creates storage with our client.
func TestTheServersStorageIsGuarded(t *testing.T) {
	t.Parallel()
	endpoint, _ := start(t)
	terms.Guard([]string{endpoint})
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{example.AddToScheme, examplev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	codec := serializer.NewCodecFactory(scheme).LegacyCodec(examplev1.SchemeGroupVersion)
	config := storagebackend.NewDefaultConfig("/registry", codec)
	config.Transport.ServerList = []string{endpoint}
	made, destroy, err := factory.Create(*config.ForResource(schema.GroupResource{Resource: "pods"}),
		func() runtime.Object { return &example.Pod{} }, func() runtime.Object { return &example.PodList{} }, "/pods")
	if err != nil {
		t.Fatal(err)
	}
	defer destroy()
	create := func(number int64, name string) error {
		return made.Create(controllerterm.With(t.Context(), number), "/pods/"+name, &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}, &example.Pod{}, 0)
	}
	for _, step := range []struct {
		number int64
		name   string
		over   bool
	}{{4, "a", false}, {5, "b", false}, {4, "c", true}, {0, "d", false}, {5, "e", false}} {
		if err := create(step.number, step.name); step.over != isOver(err) || !step.over && err != nil {
			t.Errorf("creating %s in term %d: %v, want it refused: %v", step.name, step.number, err, step.over)
		}
	}
	update := func(number int64) error {
		return made.GuaranteedUpdate(controllerterm.With(t.Context(), number), "/pods/a", &example.Pod{}, false, nil,
			storage.SimpleUpdate(func(o runtime.Object) (runtime.Object, error) {
				pod, _ := o.(*example.Pod)
				pod.Labels = map[string]string{"term": fmt.Sprint(number)}
				return pod, nil
			}), nil)
	}
	if err := update(4); !isOver(err) {
		t.Errorf("an update in term 4: %v, want it refused at once", err)
	}
	if err := update(5); err != nil {
		t.Errorf("an update in term 5: %v", err)
	}
	remove := func(number int64) error {
		return made.Delete(controllerterm.With(t.Context(), number), "/pods/b", &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
	}
	if err := remove(4); !isOver(err) {
		t.Errorf("a deletion in term 4: %v, want it refused at once", err)
	}
	if err := remove(5); err != nil {
		t.Errorf("a deletion in term 5: %v", err)
	}
}
