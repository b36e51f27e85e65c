package syncer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/crdpuller"
	"rik.dev/rik/internal/multicluster/syncer"
	"rik.dev/rik/internal/testkit/kcptest"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/output"
	"rik.dev/rik/internal/testkit/poll"
)

var (
	clusters    = workloadv1alpha1.SchemeGroupVersion.WithResource("clusters")
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	secrets     = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	services    = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	claims      = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}
	accounts    = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
	namespaces  = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	events      = schema.GroupVersionResource{Version: "v1", Resource: "events"}
	crds        = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
)

type groupVersionResource = schema.GroupVersionResource

var core = []string{"configmaps", "persistentvolumeclaims", "secrets", "serviceaccounts", "services"}

// kcp is the upstream control plane of one test.
type kcp struct {
	t       *testing.T
	server  *kcptest.Server
	config  *rest.Config
	objects dynamic.Interface
	uid     types.UID
}

func startKCP(t *testing.T) *kcp {
	t.Helper()
	server := idle.take(t)
	config := kcptest.LoopbackConfig(server)
	k := &kcp{t: t, server: server, config: config, objects: dynamic.NewForConfigOrDie(config)}
	poll.Until(t, kube.Timeout, "the kcp has kube-system", func(ctx context.Context) error {
		ns, err := k.objects.Resource(namespaces).Get(ctx, "kube-system", metav1.GetOptions{})
		if err == nil {
			k.uid = ns.GetUID()
		}
		return err
	})
	return k
}

// register creates a Cluster and sets the types that are synced to it, as the cluster controller
// does.
func (k *kcp) register(name string, names ...string) *unstructured.Unstructured {
	k.t.Helper()
	c := object(clusters, "Cluster", "", name)
	made, err := k.objects.Resource(clusters).Create(k.t.Context(), c, metav1.CreateOptions{})
	if err != nil {
		k.t.Fatalf("making the Cluster %s: %v", name, err)
	}
	k.carries(name, names...)
	return made
}

func (k *kcp) carries(name string, names ...string) {
	k.t.Helper()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"syncedResources": names}})
	if err != nil {
		k.t.Fatal(err)
	}
	if _, err := k.objects.Resource(clusters).Patch(k.t.Context(), name, mergePatch, patch, metav1.PatchOptions{}, "status"); err != nil {
		k.t.Fatalf("saying what %s carries: %v", name, err)
	}
}

const mergePatch = types.MergePatchType

func (k *kcp) namespace(name string) {
	k.t.Helper()
	_, err := k.objects.Resource(namespaces).Create(k.t.Context(), object(namespaces, "Namespace", "", name), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		k.t.Fatalf("making the namespace %s: %v", name, err)
	}
}

// publishDeployments makes the kcp serve the Deployments of the Kubernetes cluster, unless an
// earlier test has done so.
func (k *kcp) publishDeployments(from *rest.Config) {
	k.t.Helper()
	crd := pullDeployments(k.t, from)
	client := apiextensionsclient.NewForConfigOrDie(k.config).ApiextensionsV1().CustomResourceDefinitions()
	if _, err := client.Create(k.t.Context(), crd, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		k.t.Fatalf("publishing deployments: %v", err)
	}
	poll.Until(k.t, kube.Timeout, "the kcp serves deployments", func(ctx context.Context) error {
		_, err := k.objects.Resource(deployments).List(ctx, metav1.ListOptions{})
		return err
	})
}

// unpublishDeployments is for a test that starts without Deployments.
func (k *kcp) unpublishDeployments() {
	k.t.Helper()
	err := k.objects.Resource(crds).Delete(k.t.Context(), "deployments.apps", metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		k.t.Fatal(err)
	}
	types := discovery.NewDiscoveryClientForConfigOrDie(k.config)
	poll.Until(k.t, kube.Timeout, "the kcp serves no deployments", func(context.Context) error {
		list, err := types.ServerResourcesForGroupVersion("apps/v1")
		isDeployment := func(r metav1.APIResource) bool { return r.Name == deployments.Resource }
		if apierrors.IsNotFound(err) || err == nil && !slices.ContainsFunc(list.APIResources, isDeployment) {
			return nil
		}
		return errors.Join(errors.New("it serves them"), err)
	})
}

var pulled struct {
	sync.Mutex
	raw []byte
}

func pullDeployments(t *testing.T, from *rest.Config) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	pulled.Lock()
	defer pulled.Unlock()
	if pulled.raw == nil {
		puller, err := crdpuller.New(crdpuller.Config{Rest: from, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		result, err := puller.Pull(t.Context(), "deployments.apps")
		if err != nil || len(result.CRDs) != 1 {
			t.Fatalf("pulling deployments: %v, %+v", err, result)
		}
		if pulled.raw, err = json.Marshal(result.CRDs[0]); err != nil {
			t.Fatal(err)
		}
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := json.Unmarshal(pulled.raw, crd); err != nil {
		t.Fatal(err)
	}
	return crd
}

// downNamespace returns the downstream namespace of a namespace.
func (k *kcp) downNamespace(cluster, namespace string) string {
	k.t.Helper()
	c, err := k.objects.Resource(clusters).Get(k.t.Context(), cluster, metav1.GetOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	return syncer.Identity{Upstream: k.uid, Cluster: cluster, ClusterUID: c.GetUID()}.Namespace(namespace)
}

// running is a syncer that runs.
type running struct {
	cancel context.CancelFunc
	done   chan error
}

// configOf returns a configuration in which the syncer is upstream the same user as in every
// mode, with only the permissions of that user.
func (k *kcp) configOf(cluster string, downstream *rest.Config) syncer.Config {
	return syncer.Config{
		Upstream: kcptest.AsSyncer(k.t, k.server, cluster), Downstream: downstream, Cluster: cluster,
		HeartbeatInterval: 500 * time.Millisecond, Logger: output.Logger(k.t),
		// A syncer that has just started may delete any number of objects at once.
		Deletes: syncer.DeleteLimit{Count: 1 << 20},
	}
}

func (k *kcp) sync(cluster string, downstream *rest.Config) *running {
	k.t.Helper()
	return run(k.t, k.configOf(cluster, downstream))
}

func run(t *testing.T, config syncer.Config) *running {
	t.Helper()
	s, err := syncer.New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &running{cancel: cancel, done: make(chan error, 1)}
	go func() { r.done <- s.Run(ctx) }()
	t.Cleanup(func() { r.stop() })
	return r
}

// stop stops the syncer at any point, and returns what Run returned.
func (r *running) stop() error {
	r.cancel()
	err := <-r.done
	r.done <- err
	return err
}

func object(resource schema.GroupVersionResource, kind, namespace, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(resource.GroupVersion().String())
	o.SetKind(kind)
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

// parse returns an object from YAML.
func parse(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	// As a client would send it, with integers.
	raw, err := json.Marshal(o.Object)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.UnmarshalJSON(raw); err != nil {
		t.Fatal(err)
	}
	return o
}

func configMap(namespace, name, cluster string, data map[string]string) *unstructured.Unstructured {
	o := object(configMaps, "ConfigMap", namespace, name)
	o.SetLabels(map[string]string{workloadv1alpha1.ClusterLabel: cluster})
	content := map[string]any{}
	for k, v := range data {
		content[k] = v
	}
	o.Object["data"] = content
	return o
}

func deployment(t *testing.T, namespace, name, cluster string) *unstructured.Unstructured {
	t.Helper()
	return parse(t, fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata:
  name: %s
  namespace: %s
  labels: {app: web, workloads.kcp.dev/cluster: %s}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}, creationTimestamp: null}
    spec:
      containers:
      - name: web
        image: web:1
        ports: [{containerPort: 80}]
        env: [{name: A, value: "1"}]
        resources: {requests: {cpu: 1000m}}
`, name, namespace, cluster))
}

func create(t *testing.T, c dynamic.Interface, r schema.GroupVersionResource, o *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	made, err := c.Resource(r).Namespace(o.GetNamespace()).Create(t.Context(), o, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating %s %s/%s: %v", o.GetKind(), o.GetNamespace(), o.GetName(), err)
	}
	return made
}

func patch(t *testing.T, c dynamic.Interface, r schema.GroupVersionResource, namespace, name, text string, subresources ...string) *unstructured.Unstructured {
	t.Helper()
	o, err := c.Resource(r).Namespace(namespace).Patch(t.Context(), name, types.MergePatchType, []byte(text), metav1.PatchOptions{FieldManager: "kubectl-edit"}, subresources...)
	if err != nil {
		t.Fatalf("patching %s %s/%s: %v", r.Resource, namespace, name, err)
	}
	return o
}

func remove(t *testing.T, c dynamic.Interface, r schema.GroupVersionResource, namespace, name string) {
	t.Helper()
	if err := c.Resource(r).Namespace(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatalf("deleting %s %s/%s: %v", r.Resource, namespace, name, err)
	}
}

// has waits until the object exists and satisfies want.
func has(t *testing.T, c dynamic.Interface, r schema.GroupVersionResource, namespace, name string, want func(*unstructured.Unstructured) error) *unstructured.Unstructured {
	t.Helper()
	var found *unstructured.Unstructured
	poll.Until(t, kube.Timeout, fmt.Sprintf("%s %s/%s is as it should be", r.Resource, namespace, name), func(ctx context.Context) error {
		o, err := c.Resource(r).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		found = o
		return want(o)
	})
	return found
}

func hasNot(t *testing.T, c dynamic.Interface, r schema.GroupVersionResource, namespace, name string) {
	t.Helper()
	poll.Until(t, kube.Timeout, fmt.Sprintf("%s %s/%s is gone", r.Resource, namespace, name), func(ctx context.Context) error {
		_, err := c.Resource(r).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err == nil:
			return errors.New("it is there")
		default:
			return err
		}
	})
}

func anyhow(*unstructured.Unstructured) error { return nil }

// field checks the value of a field, as JSON represents it.
func field(want any, path ...string) func(*unstructured.Unstructured) error {
	return func(o *unstructured.Unstructured) error {
		got, _, err := unstructured.NestedFieldNoCopy(o.Object, path...)
		if err != nil {
			return err
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("%v is %v, want %v", path, got, want)
		}
		return nil
	}
}

// image checks the image of a Deployment's first container.
func image(want string) func(*unstructured.Unstructured) error {
	return func(o *unstructured.Unstructured) error {
		containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
		if err != nil || len(containers) == 0 {
			return fmt.Errorf("no containers: %w", err)
		}
		if got := containers[0].(map[string]any)["image"]; got != want {
			return fmt.Errorf("the image is %v, want %v", got, want)
		}
		return nil
	}
}

// problem checks that a problem with this reason is reported on the object.
func problem(cluster, reason string) func(*unstructured.Unstructured) error {
	return func(o *unstructured.Unstructured) error {
		said := o.GetAnnotations()[workloadv1alpha1.ProblemAnnotationPrefix+cluster]
		if reason == "" && said == "" || reason != "" && len(said) > len(reason) && said[:len(reason)] == reason {
			return nil
		}
		return fmt.Errorf("the problem is %q, want %q", said, reason)
	}
}

func downstream(t *testing.T) (*kube.Cluster, dynamic.Interface) {
	t.Helper()
	c := kube.Shared(t)
	return c, dynamic.NewForConfigOrDie(c.Rest())
}

// clusterOf reads a Cluster.
func (k *kcp) clusterOf(ctx context.Context, name string) (*workloadv1alpha1.Cluster, error) {
	o, err := k.objects.Resource(clusters).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	c := &workloadv1alpha1.Cluster{}
	return c, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, c)
}
