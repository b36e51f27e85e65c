package bench

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/testkit/rikcluster"
)

const kcpReadyz = "https://127.0.0.1:6443/readyz"

var (
	clusterType    = workloadv1alpha1.SchemeGroupVersion.WithResource("clusters")
	namespaceType  = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	configMapType  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	deploymentType = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
)

// controlPlane is a running kcp from the built program, with its administrator's clients.
type controlPlane struct {
	b       *testing.B
	pid     int
	stop    func()
	config  *rest.Config
	objects dynamic.Interface
	// kubeconfig is the path of the administrator's.
	kubeconfig string
}

// startKCP starts the built kcp on empty data, and returns when it is ready.
func startKCP(b *testing.B, args ...string) *controlPlane {
	b.Helper()
	dir := b.TempDir()
	k := &controlPlane{b: b}
	k.pid, k.stop = launchKCP(b, dir, args...)
	poll(b, often, "the kcp to be ready", func() bool { return isReady(b, kcpReadyz, "") })
	var err error
	k.kubeconfig = filepath.Join(dir, "kcp", "admin.kubeconfig")
	if k.config, err = clientcmd.BuildConfigFromFlags("", k.kubeconfig); err != nil {
		b.Fatal(err)
	}
	k.config.QPS, k.config.WarningHandler = -1, rest.NoWarnings{}
	k.objects = dynamic.NewForConfigOrDie(k.config)
	return k
}

func launchKCP(b *testing.B, dir string, args ...string) (pid int, stop func()) {
	b.Helper()
	args = append([]string{"--root-directory", filepath.Join(dir, "kcp"), "--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1"}, args...)
	return start(b, filepath.Join(dir, "kcp.log"), filepath.Join(rikcluster.Bin(b), "kcp"), args...)
}

// register creates a Cluster.
func (k *controlPlane) register(name string, kubeconfig []byte) {
	k.b.Helper()
	c := object(clusterType, "Cluster", "", name)
	c.Object["spec"] = map[string]any{"kubeconfig": string(kubeconfig)}
	k.create(clusterType, c)
}

func (k *controlPlane) create(resource schema.GroupVersionResource, o *unstructured.Unstructured) {
	k.b.Helper()
	if _, err := k.objects.Resource(resource).Namespace(o.GetNamespace()).Create(k.b.Context(), o, metav1.CreateOptions{}); err != nil {
		k.b.Fatalf("making the %s %s: %v", o.GetKind(), o.GetName(), err)
	}
}

// cluster reads a Cluster.
func (k *controlPlane) cluster(name string) *workloadv1alpha1.Cluster {
	k.b.Helper()
	found, err := k.objects.Resource(clusterType).Get(k.b.Context(), name, metav1.GetOptions{})
	if err != nil {
		k.b.Fatal(err)
	}
	c := &workloadv1alpha1.Cluster{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, c); err != nil {
		k.b.Fatal(err)
	}
	return c
}

// carries reports whether a Cluster and its syncer are ready, and the syncer copies these types.
func carries(c *workloadv1alpha1.Cluster, types ...string) bool {
	for _, t := range types {
		if !slices.Contains(c.Status.SyncedResources, t) {
			return false
		}
	}
	return meta.IsStatusConditionTrue(c.Status.Conditions, workloadv1alpha1.ConditionReady) &&
		meta.IsStatusConditionTrue(c.Status.Conditions, workloadv1alpha1.ConditionSyncerReady)
}

// metrics returns the kcp's metrics as text.
func (k *controlPlane) metrics() string {
	k.b.Helper()
	client, err := kubernetes.NewForConfig(k.config)
	if err != nil {
		k.b.Fatal(err)
	}
	raw, err := client.Discovery().RESTClient().Get().AbsPath("/metrics").Do(k.b.Context()).Raw()
	if err != nil {
		k.b.Fatal(err)
	}
	return string(raw)
}

// metricValues returns the values of metrics of the kcp, by names without labels.
func (k *controlPlane) metricValues(names ...string) map[string]float64 {
	k.b.Helper()
	found := map[string]float64{}
	for line := range strings.Lines(k.metrics()) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if slices.Contains(names, name) {
			var err error
			if found[name], err = strconv.ParseFloat(text, 64); err != nil {
				k.b.Fatalf("the metric %s: %v", name, err)
			}
		}
	}
	if len(found) != len(names) {
		k.b.Fatalf("of the metrics %v there are %v", names, found)
	}
	return found
}

func object(resource schema.GroupVersionResource, kind, namespace, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetAPIVersion(resource.GroupVersion().String())
	o.SetKind(kind)
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

// observer records when it first saw each object of a type with each value of a label.
type observer struct {
	b     *testing.B
	label string

	mu sync.Mutex
	// mu guards the following fields.
	at     map[sample]time.Time
	wanted map[sample]bool
	done   chan struct{}
}

// sample is an object with a value of the label.
type sample struct{ name, value string }

func observe(b *testing.B, config *rest.Config, resource schema.GroupVersionResource, label string) *observer {
	b.Helper()
	o := &observer{b: b, label: label, at: map[sample]time.Time{}}
	informer := dynamicinformer.NewFilteredDynamicInformer(dynamic.NewForConfigOrDie(config), resource, metav1.NamespaceAll, 0, cache.Indexers{},
		func(options *metav1.ListOptions) { options.LabelSelector = label }).Informer()
	runInformer(b, informer, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(seen any) { o.note(seen, time.Now()) },
		UpdateFunc: func(_, seen any) { o.note(seen, time.Now()) },
	})
	return o
}

// runInformer runs an informer until the benchmark ends. It returns when the informer has
// synced.
func runInformer(b *testing.B, informer cache.SharedIndexInformer, handler cache.ResourceEventHandler) {
	b.Helper()
	if _, err := informer.AddEventHandler(handler); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	b.Cleanup(func() { cancel(); running.Wait() })
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		b.Fatal("what is to be followed cannot be watched")
	}
}

func (o *observer) note(seen any, now time.Time) {
	u, ok := seen.(*unstructured.Unstructured)
	if !ok {
		return
	}
	s := sample{u.GetName(), u.GetLabels()[o.label]}
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, known := o.at[s]; known {
		return
	}
	o.at[s] = now
	if delete(o.wanted, s); o.done != nil && len(o.wanted) == 0 {
		close(o.done)
		o.done = nil
	}
}

// await waits until all of these were seen, and returns when each was first seen.
func (o *observer) await(what string, wanted []sample) []time.Time {
	o.b.Helper()
	done := make(chan struct{})
	o.mu.Lock()
	o.wanted = map[sample]bool{}
	for _, s := range wanted {
		if _, known := o.at[s]; !known {
			o.wanted[s] = true
		}
	}
	if len(o.wanted) == 0 {
		close(done)
	} else {
		o.done = done
	}
	o.mu.Unlock()
	select {
	case <-done:
	case <-time.After(timeout):
		o.mu.Lock()
		defer o.mu.Unlock()
		o.b.Fatalf("still waiting for %s: %d of %d are missing", what, len(o.wanted), len(wanted))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	at := make([]time.Time, len(wanted))
	for i, s := range wanted {
		at[i] = o.at[s]
	}
	return at
}
