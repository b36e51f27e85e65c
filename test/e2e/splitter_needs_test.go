package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

var (
	configMapsType  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	secretsType     = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	accountsType    = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
	claimsType      = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}
	servicesType    = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	ingressesType   = schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"}
	statefulSets    = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "statefulsets"}
	daemonSets      = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}
	shopsType       = schema.GroupVersionResource{Group: "example.dev", Version: "v1", Resource: "shops"}
	rikWorkloads    = schema.GroupVersionResource{Group: "rik.dev", Version: "v1alpha1", Resource: "workloads"}
	volumesType     = schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumes"}
	dependencyTypes = map[schema.GroupVersionResource]string{configMapsType: "settings", secretsType: "keys", accountsType: "runner", claimsType: "data"}
)

// servicesFollow tests that the objects that send traffic to a root go to the clusters of the
// root, and leave with it.
func servicesFollow(c *splitCase) {
	c.why("deployment/web")
	c.create(servicesType, `
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
`)
	c.create(ingressesType, `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec:
  rules:
    - http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
`)
	c.deploy("web", 4, map[string]string{"clusters": onKubernetes})
	c.rests("web", parts{"north": 2, "south": 2})
	c.awaitHas(servicesType, "web", "north", "south")
	c.awaitHas(ingressesType, "web", "north", "south")
	c.hints("web", map[string]string{"not-clusters": "workloads.kcp.dev/cluster=south"})
	c.rests("web", parts{"north": 4})
	c.awaitHas(servicesType, "web", "north")
	c.awaitHas(ingressesType, "web", "north")
	c.remove("web")
	c.awaitHas(servicesType, "web")
	c.awaitHas(ingressesType, "web")
}

const dependencies = `
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {GREETING: hi}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {KEY: abc}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: runner}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  resources: {requests: {storage: 1Mi}}
`

// apply applies manifests in the namespace.
func (c *splitCase) apply(manifests string) {
	c.tb.Helper()
	file := c.tb.TempDir() + "/manifests.yaml"
	if err := os.WriteFile(file, []byte(manifests), 0o600); err != nil {
		c.tb.Fatal(err)
	}
	c.kubectl("apply", "-f", file)
}

// dependenciesFollow tests that the objects that a root names are sent before it, and leave after
// it. A claim stays where it was, and a bound claim keeps the root there.
func dependenciesFollow(c *splitCase) {
	c.why("deployment/app")
	c.apply(dependencies)
	history := c.watchOrder("north")
	manifest := strings.Replace(c.root("app", 2, map[string]string{"clusters": "workloads.kcp.dev/cluster=north"}), "      containers:\n", `      serviceAccountName: runner
      volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
      containers:
`, 1)
	manifest = strings.Replace(manifest, `          args:`, `          envFrom: [{configMapRef: {name: settings}}, {secretRef: {name: keys}}]
          volumeMounts: [{name: data, mountPath: /data}]
          args:`, 1)
	c.create(deployments, manifest)
	c.rests("app", parts{"north": 2})
	for resource, name := range dependencyTypes {
		c.awaitHas(resource, name, "north")
	}
	claim, err := c.has("north", claimsType, "data")
	if err != nil {
		c.tb.Fatal(err)
	}

	c.hints("app", map[string]string{"clusters": "workloads.kcp.dev/cluster=south"})
	c.rests("app", parts{"south": 2})
	for resource, name := range dependencyTypes {
		if resource != claimsType {
			c.awaitHas(resource, name, "south")
		}
	}
	history.inOrder(c.tb.(*testing.T))
	c.awaitHas(claimsType, "data", "north", "south")
	if still, err := c.has("north", claimsType, "data"); err != nil || still == nil || still.GetUID() != claim.GetUID() || still.GetDeletionTimestamp() != nil {
		c.tb.Errorf("the claim in the cluster that the root left is not what it was (%v)", err)
	}

	c.bind("south")
	c.hints("app", map[string]string{"clusters": "workloads.kcp.dev/cluster=north"})
	c.eventually(func() error {
		if out := c.do("rikctl", "why", "deployment/app"); !strings.Contains(out, "its data is here") {
			return fmt.Errorf("why does not tell why the root stays:\n%s", out)
		}
		return nil
	})
	c.rests("app", parts{"south": 2})
	c.remove("app")
	c.awaitHas(claimsType, "data", "north", "south")
}

// bind binds the claim in a cluster to a volume, and waits until the kcp has its status.
func (c *splitCase) bind(cluster string) {
	c.tb.Helper()
	namespace, err := c.namespaceIn(cluster)
	if err != nil {
		c.tb.Fatal(err)
	}
	volume := decode(c.tb, fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: %s}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Mi}
  hostPath: {path: /nowhere}
  claimRef: {namespace: %s, name: data}
`, c.namespace, namespace))
	if _, err := c.down[cluster].Resource(volumesType).Create(c.tb.Context(), volume, metav1.CreateOptions{}); err != nil {
		c.tb.Fatal(err)
	}
	c.eventually(func() error {
		claim, err := c.up.Resource(claimsType).Namespace(c.namespace).Get(c.tb.Context(), "data", metav1.GetOptions{})
		if err == nil && !strings.Contains(fmt.Sprint(claim.Object), "Bound") {
			err = fmt.Errorf("the claim is not bound: %v", claim.Object)
		}
		return err
	})
}

// order records when objects were sent to a cluster, in resource versions of the kcp, and when
// they left it, in its own. The order in which they arrive there is not defined: each type is
// synced separately, and an object that needs another one waits for it in its cluster.
type order struct {
	cluster    string
	mu         sync.Mutex
	sent, left map[string]int64 // by type/name
	problems   []error
}

// watchOrder starts to watch the kcp and a cluster. It ends with the test.
func (c *splitCase) watchOrder(cluster string) *order {
	c.tb.Helper()
	o := &order{cluster: cluster, sent: map[string]int64{}, left: map[string]int64{}}
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	c.tb.Cleanup(func() { cancel(); watching.Wait() })
	for _, resource := range []schema.GroupVersionResource{deployments, configMapsType, secretsType, accountsType, claimsType} {
		for client, note := range map[dynamic.Interface]func(string, *unstructured.Unstructured, watch.EventType, int64){
			c.up: o.upstream, c.down[cluster]: o.downstream,
		} {
			w, err := client.Resource(resource).Watch(ctx, metav1.ListOptions{})
			if err != nil {
				c.tb.Fatal(err)
			}
			watching.Go(func() {
				defer w.Stop()
				for e := range w.ResultChan() {
					o.note(resource.Resource, e, note)
				}
			})
		}
	}
	return o
}

func (o *order) note(resource string, e watch.Event, note func(string, *unstructured.Unstructured, watch.EventType, int64)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	object, ok := e.Object.(*unstructured.Unstructured)
	if !ok {
		o.problems = append(o.problems, fmt.Errorf("the watch of %s says %v", resource, e.Object))
		return
	}
	at, err := strconv.ParseInt(object.GetResourceVersion(), 10, 64)
	if err != nil {
		o.problems = append(o.problems, err)
	}
	note(resource+"/"+object.GetName(), object, e.Type, at)
}

// upstream records when an object was first sent to the cluster.
func (o *order) upstream(key string, object *unstructured.Unstructured, _ watch.EventType, at int64) {
	if o.sent[key] == 0 && slices.Contains(workloadv1alpha1.Targets(object.GetLabels()), o.cluster) {
		o.sent[key] = at
	}
}

func (o *order) downstream(key string, _ *unstructured.Unstructured, what watch.EventType, at int64) {
	if what == watch.Deleted {
		o.left[key] = at
	}
}

// inOrder checks that everything that app needs was sent before it, and left after it, and that
// its claim has not left.
func (o *order) inOrder(t *testing.T) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := errors.Join(o.problems...); err != nil {
		t.Error(err)
	}
	const app = "deployments/app--north"
	if o.sent[app] == 0 || o.left[app] == 0 {
		t.Fatalf("%s was sent at %d and left at %d", app, o.sent[app], o.left[app])
	}
	for resource, name := range dependencyTypes {
		key := resource.Resource + "/" + name
		if sent := o.sent[key]; sent == 0 || sent > o.sent[app] {
			t.Errorf("%s was sent at %d, what needs it at %d", key, sent, o.sent[app])
		}
		left := o.left[key]
		if resource == claimsType {
			if left != 0 {
				t.Errorf("%s left at %d", key, left)
			}
		} else if left < o.left[app] {
			t.Errorf("%s left at %d, what needs it at %d", key, left, o.left[app])
		}
	}
}

// dependenciesAreRead checks that containers can read the followers, in two rik clusters.
func dependenciesAreRead(c *splitCase) {
	c.why("deployment/app")
	c.kubectl("create", "configmap", "settings", "--from-literal=GREETING=hi")
	c.kubectl("create", "secret", "generic", "keys", "--from-literal=KEY=abc")
	c.create(deployments, strings.Replace(c.root("app", 2, map[string]string{"clusters": onRik}), `          args:`,
		`          envFrom: [{configMapRef: {name: settings}}, {secretRef: {name: keys}}]
          args:`, 1))
	both := parts{"east": 1, "west": 1}
	c.rests("app", both)
	for _, want := range []string{"GREETING=hi", "KEY=abc"} {
		if err := c.environment(want, both); err != nil {
			c.tb.Error(err)
		}
	}
	c.remove("app")
	c.awaitHas(configMapsType, "settings")
	c.awaitHas(secretsType, "keys")
}

// environ returns the environment of a process from the kernel.
func environ(pid int) []string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00")
}

// anyType tests that a type with a scale subresource is split by replicas. Objects of other types
// go as a whole to one cluster, or to all clusters.
func anyType(c *splitCase) {
	const pod = `{metadata: {labels: {app: x}}, spec: {containers: [{name: x, image: "x:1"}]}}`
	c.create(statefulSets, `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec: {replicas: 3, selector: {matchLabels: {app: x}}, template: `+pod+`}
`)
	c.create(daemonSets, `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec: {selector: {matchLabels: {app: x}}, template: `+pod+`}
`)
	c.create(shopsType, `{apiVersion: example.dev/v1, kind: Shop, metadata: {name: corner}, spec: {tills: 5}}`)
	c.create(rikWorkloads, fmt.Sprintf(`
apiVersion: rik.dev/v1alpha1
kind: Workload
metadata: {name: hello}
spec: {deploy: Automatic, replicas: 4, terminationGracePeriodSeconds: 1, containers: [{name: hello, image: %q}]}
`, c.image))
	for _, tc := range []struct {
		resource schema.GroupVersionResource
		name     string
		path     []string
		want     parts
		suffix   bool // its parts have the names of leaves in the clusters
	}{
		{statefulSets, "db", []string{"spec", "replicas"}, parts{"north": 3}, false},
		{daemonSets, "agent", nil, parts{"north": 1, "south": 1}, false},
		{shopsType, "corner", []string{"spec", "tills"}, parts{"north": 3, "south": 2}, true},
		{rikWorkloads, "hello", []string{"spec", "replicas"}, parts{"east": 2, "west": 2}, true},
	} {
		c.eventually(func() error {
			got, err := c.parts(tc.resource, tc.name, tc.path...)
			if err == nil && fmt.Sprint(got) != fmt.Sprint(tc.want) {
				err = fmt.Errorf("%s %s is divided %v, want %v", tc.resource.Resource, tc.name, got, tc.want)
			}
			return err
		})
		for cluster := range tc.want {
			name := tc.name
			if tc.suffix {
				name += "--" + cluster
			}
			c.eventually(func() error {
				if found, err := c.has(cluster, tc.resource, name); err != nil || found == nil {
					return fmt.Errorf("%s does not have %s %s (%w)", cluster, tc.resource.Resource, name, err)
				}
				return nil
			})
		}
	}
	c.eventually(func() error {
		root, err := c.up.Resource(statefulSets).Namespace(c.namespace).Get(c.tb.Context(), "db", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if n, _, _ := unstructured.NestedInt64(root.Object, "status", "readyReplicas"); n != 3 {
			return fmt.Errorf("%d of the StatefulSet are ready, want 3", n)
		}
		for _, cluster := range []string{"east", "west"} {
			if n, err := c.running(cluster, ""); n != 2 || err != nil {
				return fmt.Errorf("%d of the Workload run in %s, want 2 (%w)", n, cluster, err)
			}
		}
		return nil
	})
	c.kubectl("delete", "statefulset/db", "daemonset/agent", "shop/corner", "workload/hello", "--timeout=120s")
	c.awaitHas(statefulSets, "db")
	c.awaitHas(shopsType, "corner--north")
	c.eventually(func() error {
		for _, cluster := range []string{"east", "west"} {
			if n, err := c.running(cluster, ""); n != 0 || err != nil {
				return fmt.Errorf("%d run in %s after the end (%w)", n, cluster, err)
			}
		}
		return nil
	})
}
