package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/rikcluster"
)

var (
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	namespaces  = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	pods        = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	clusters    = workloadv1alpha1.SchemeGroupVersion.WithResource("clusters")
)

// carriedTypes are the types that the fleet's clusters get in addition to the default ones.
const carriedTypes = "deployments.apps,statefulsets.apps,daemonsets.apps,ingresses.networking.k8s.io,shops.example.dev,workloads.rik.dev"

// fleet is a kcp with four clusters. East and west are rik clusters, each in a place whose cable
// can be disconnected, and run containers. North and south are one Kubernetes, whose pods are
// simulated. Labels of the Clusters have their kind.
type fleet struct {
	*kcp
	// whole is the test of all cases.
	whole *testing.T
	up    dynamic.Interface
	rik   map[string]*rikcluster.Cluster
	site  map[string]*rikcluster.Place
	wide  *kube.Cluster
	// down reaches the clusters directly, and files are their kubeconfigs.
	down  map[string]dynamic.Interface
	files map[string]string
	image string
}

func startFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{
		whole: t, rik: map[string]*rikcluster.Cluster{}, site: map[string]*rikcluster.Place{},
		down: map[string]dynamic.Interface{}, files: map[string]string{},
	}
	f.wide = kube.Start(t, kube.Options{ControllerManager: true, Kubelet: true})
	rikcluster.MakeLan(t)
	for i, name := range []string{"east", "west"} {
		f.site[name] = rikcluster.NewPlace(t, fmt.Sprintf("rik-fleet-%d-%s", os.Getpid(), name), i+1)
		f.rik[name] = rikcluster.Start(t, rikcluster.Options{Place: f.site[name]})
		f.files[name] = filepath.Join(f.rik[name].DataDir(), "admin.kubeconfig")
		f.down[name] = dynamicClient(t, f.files[name])
	}
	f.image = f.rik["east"].Hello()
	f.kcp = startKCP(t, "6443", "--push-mode", "--auto-publish-apis", "--resources-to-sync", carriedTypes,
		"--discovery-poll-interval", "30s")
	f.up = dynamicClient(t, f.kubeconfig())
	file := filepath.Join(t.TempDir(), "kube.kubeconfig")
	if err := os.WriteFile(file, f.wide.Kubeconfig(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"north", "south"} {
		f.files[name] = file
		f.down[name] = dynamicClient(t, file)
	}
	f.makeShops()
	return f
}

// dynamicClient connects with a kubeconfig, without a client-side rate limit. Tests poll often,
// and that many kubectl processes would use more CPU time than the clusters.
func dynamicClient(t *testing.T, file string) dynamic.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// makeShops makes the Kubernetes serve a custom type that can be scaled.
func (f *fleet) makeShops() {
	f.tb.Helper()
	shops := decode(f.tb, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: shops.example.dev}
spec:
  group: example.dev
  scope: Namespaced
  names: {plural: shops, singular: shop, kind: Shop, listKind: ShopList}
  versions:
    - name: v1
      served: true
      storage: true
      subresources:
        status: {}
        scale: {specReplicasPath: .spec.tills, statusReplicasPath: .status.tills}
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {type: object, properties: {tills: {type: integer}}}
            status: {type: object, properties: {tills: {type: integer}, observedGeneration: {type: integer}}}
`)
	resource := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	if _, err := f.down["north"].Resource(resource).Create(f.tb.Context(), shops, metav1.CreateOptions{}); err != nil {
		f.tb.Fatal(err)
	}
}

// register registers clusters with labels for their kind, and waits until Deployments are synced
// to them.
func (f *fleet) register(names ...string) {
	f.tb.Helper()
	for _, name := range names {
		f.do("rikctl", "cluster", "register", name, "--kubeconfig", f.files[name])
		f.do("rikctl", "annotate", "cluster.workload.kcp.dev", name, "workloads.kcp.dev/own-cluster=true")
		kind := "kubernetes"
		if f.rik[name] != nil {
			kind = "rik"
		}
		f.patchCluster(name, fmt.Sprintf(`{"metadata":{"labels":{"kind":%q}}}`, kind))
	}
	for _, name := range names {
		f.awaitCluster(name, metav1.ConditionTrue)
		f.eventually(func() error {
			c, err := f.cluster(name)
			if err == nil && !strings.Contains(fmt.Sprint(c.Status.SyncedResources), "deployments.apps") {
				err = fmt.Errorf("%s is sent %v", name, c.Status.SyncedResources)
			}
			return err
		})
	}
}

func (f *fleet) cluster(name string) (*workloadv1alpha1.Cluster, error) {
	found, err := f.up.Resource(clusters).Get(f.tb.Context(), name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	c := &workloadv1alpha1.Cluster{}
	return c, fromUnstructured(found, c)
}

// awaitCluster waits until a Cluster's condition Ready has the wanted status.
func (f *fleet) awaitCluster(name string, want metav1.ConditionStatus) {
	f.tb.Helper()
	f.eventually(func() error {
		c, err := f.cluster(name)
		if err != nil {
			return err
		}
		for _, condition := range c.Status.Conditions {
			if condition.Type == workloadv1alpha1.ConditionReady && condition.Status == want {
				return nil
			}
		}
		return fmt.Errorf("%s is to be ready: %s, and says %+v", name, want, c.Status.Conditions)
	})
}

func (f *fleet) patchCluster(name, patch string) {
	f.tb.Helper()
	mergePatch(f.tb, f.up.Resource(clusters), name, patch)
}

// in returns the same fleet for a subtest.
func (f *fleet) in(t *testing.T) *fleet {
	inner := *f
	inner.kcp = f.kcp.in(t)
	return &inner
}

func decode(tb testing.TB, manifest string) *unstructured.Unstructured {
	tb.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &object.Object); err != nil {
		tb.Fatalf("reading %s: %v", manifest, err)
	}
	return object
}

func fromUnstructured(from *unstructured.Unstructured, to any) error {
	return runtime.DefaultUnstructuredConverter.FromUnstructured(from.Object, to)
}

func mergePatch(tb testing.TB, client dynamic.ResourceInterface, name, patch string) {
	tb.Helper()
	if _, err := client.Patch(tb.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		tb.Fatalf("changing %s by %s: %v", name, patch, err)
	}
}
