package follower

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata/fake"
	"sigs.k8s.io/yaml"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/key"
	"rik.dev/rik/internal/multicluster/splitter/loader"
)

const namespace = "team"

// fakeLeaves answers as the test says.
type fakeLeaves struct {
	// needed are the clusters of Deployments that need an object.
	needed map[key.Follower][]string
	// behind are the clusters of the backends of Ingresses, by name.
	behind map[string][]string
	// rolling are the clusters in which a Deployment does not run its current spec.
	rolling []string
	// unread is true if the Deployments were not read.
	unread bool
	// refusing are the clusters whose syncers do not copy a type.
	refusing map[string]string
	// selectors are the selectors with which Needing was called.
	selectors map[key.Follower]map[string]string
}

var _ Leaves = &fakeLeaves{}

var deployments = loader.Type{GVK: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, Resource: "deployments"}

func (l *fakeLeaves) Needing(k key.Follower, selector map[string]string) []Demand {
	if len(selector) > 0 {
		l.selectors[k] = selector
	}
	if len(l.needed[k]) == 0 {
		return nil
	}
	return []Demand{{Clusters: slices.Clone(l.needed[k]), Types: []string{deployments.GroupResource().String()}}}
}

func (l *fakeLeaves) Behind(_ string, backend splitter.Reference) []string {
	return l.behind[backend.Name]
}

func (l *fakeLeaves) IsRolling(_, cluster string, types []string) bool {
	return slices.Contains(types, deployments.GroupResource().String()) && slices.Contains(l.rolling, cluster)
}

func (l *fakeLeaves) Read() ([]string, bool) {
	if l.unread {
		return nil, false
	}
	return []string{deployments.GroupResource().String()}, true
}

func (l *fakeLeaves) Takes(cluster string, resource schema.GroupResource) bool {
	return l.refusing[cluster] != resource.Resource
}

// kcp is a kcp with followers. Its caches are always up to date.
type kcp struct {
	*testing.T
	leaves    *fakeLeaves
	followers *Followers
	client    *fake.FakeMetadataClient
	now       time.Time
	writes    int
}

func newKCP(t *testing.T, objects ...string) *kcp {
	t.Helper()
	scheme := fake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	k := &kcp{T: t, client: fake.NewSimpleMetadataClient(scheme), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), leaves: &fakeLeaves{
		needed: map[key.Follower][]string{}, behind: map[string][]string{}, refusing: map[string]string{}, selectors: map[key.Follower]map[string]string{},
	}}
	var err error
	k.followers, err = New(Config{
		Metadata: k.client, Leaves: k.leaves, Changed: func(_, _ *Object) {}, Sent: func() { k.writes++ }, FieldManager: "test",
		Workers: 1, ReleaseDelay: time.Second, Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return k.now },
	})
	if err != nil {
		t.Fatal(err)
	}
	ingresses, err := k.followers.newObjects(networkingv1.SchemeGroupVersion.WithResource("ingresses"), KindIngress, false)
	if err != nil {
		t.Fatal(err)
	}
	k.followers.caches[KindIngress] = ingresses
	for _, text := range objects {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatal(err)
		}
		o.SetAPIVersion("v1")
		if o.GetKind() == KindIngress {
			o.SetAPIVersion(networkingv1.SchemeGroupVersion.String())
		}
		o.SetNamespace(namespace)
		meta := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: o.GetAPIVersion(), Kind: o.GetKind()}}
		meta.Name, meta.Namespace = o.GetName(), namespace
		if err := k.client.Tracker().Create(k.resource(o.GetKind()), meta, namespace); err != nil {
			t.Fatal(err)
		}
		if err := k.followers.of(o.GetKind()).GetIndexer().Add(newObject(o)); err != nil {
			t.Fatal(err)
		}
	}
	return k
}

func (k *kcp) resource(kind string) schema.GroupVersionResource { return k.followers.of(kind).resource }

func at(kind, name string) key.Follower {
	return key.Follower{Kind: kind, Namespace: namespace, Name: name}
}

// pass makes one pass over a follower and delivers what it wrote.
func (k *kcp) pass(of key.Follower) time.Duration {
	k.Helper()
	again, err := k.followers.reconcile(k.Context(), of)
	if err != nil {
		k.Fatalf("a pass over %s: %v", of, err)
	}
	k.deliver(of)
	return again
}

// deliver brings the metadata of a follower from the kcp into the cache.
func (k *kcp) deliver(of key.Follower) {
	k.Helper()
	stored, err := k.client.Resource(k.resource(of.Kind)).Namespace(namespace).Get(context.Background(), of.Name, metav1.GetOptions{})
	if err != nil {
		k.Fatal(err)
	}
	next := *k.followers.Get(of)
	next.Unstructured = next.DeepCopy()
	next.SetLabels(stored.Labels)
	next.SetAnnotations(stored.Annotations)
	if err := k.followers.of(of.Kind).GetIndexer().Update(&next); err != nil {
		k.Fatal(err)
	}
}

// is checks in which clusters a follower is.
func (k *kcp) is(of key.Follower, want ...string) {
	k.Helper()
	if got := workloadv1alpha1.Targets(k.followers.Get(of).GetLabels()); !slices.Equal(got, want) {
		k.Errorf("%s is in %q, want %q", of, got, want)
	}
}

// isDone checks that another pass writes nothing.
func (k *kcp) isDone(of key.Follower) {
	k.Helper()
	before := k.writes
	if k.pass(of); k.writes != before {
		k.Errorf("a second pass over %s has written", of)
	}
}

var (
	token    = at(splitter.KindSecret, "token")
	settings = at(splitter.KindConfigMap, "settings")
)

func TestGoesWhereItIsNeeded(t *testing.T) {
	t.Parallel()
	k := newKCP(t, `{kind: Secret, metadata: {name: token}}`)
	k.leaves.needed[token] = []string{"west", "east", "west"}
	if again := k.pass(token); again != 0 {
		t.Errorf("it is checked again in %v", again)
	}
	k.is(token, "east", "west")
	if got := k.followers.Get(token).neededBy(); !slices.Equal(got, []string{"deployments.apps"}) {
		t.Errorf("it is needed by %q, want deployments.apps", got)
	}
	k.isDone(token)
	k.leaves.needed[token] = []string{"east"}
	if again := k.pass(token); again != time.Second {
		t.Errorf("an unneeded follower stays for %v, want %v", again, time.Second)
	}
	k.is(token, "east", "west")
	k.now = k.now.Add(time.Second)
	k.pass(token)
	k.is(token, "east")
	k.isDone(token)
}

// TestStays tests the reasons for which a follower stays where no leaf is known to need it.
func TestStays(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cause, end func(*kcp)
		again      time.Duration
	}{
		"a type is not read": {
			cause: func(k *kcp) { k.leaves.unread = true }, end: func(k *kcp) { k.leaves.unread = false }, again: heldAgain,
		},
		"an earlier spec runs": {
			cause: func(k *kcp) { k.leaves.rolling = []string{"east"} }, end: func(k *kcp) { k.leaves.rolling = nil }, again: heldAgain,
		},
		"a leaf is about to be created": {
			cause: func(k *kcp) { k.followers.memory.await(settings, "east", k.now) }, end: func(k *kcp) { k.now = k.now.Add(aheadFor) }, again: aheadFor - 10*time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKCP(t, `{kind: ConfigMap, metadata: {name: settings}}`)
			k.leaves.needed[settings] = []string{"east"}
			k.pass(settings)
			k.leaves.needed[settings] = nil
			tc.cause(k)
			k.pass(settings)
			k.now = k.now.Add(10 * time.Second)
			if again := k.pass(settings); again != tc.again {
				t.Errorf("it is checked again in %v, want %v", again, tc.again)
			}
			k.is(settings, "east")
			tc.end(k)
			k.pass(settings)
			k.now = k.now.Add(10 * time.Second)
			k.pass(settings)
			k.is(settings)
		})
	}
}

// TestNotTaken tests a cluster whose syncer does not copy the type.
func TestNotTaken(t *testing.T) {
	t.Parallel()
	k := newKCP(t, `{kind: ConfigMap, metadata: {name: settings}}`)
	k.leaves.needed[settings] = []string{"east", "west"}
	k.leaves.refusing["west"] = "configmaps"
	k.pass(settings)
	k.is(settings, "east")
	problem := func() string {
		return k.followers.Get(settings).GetAnnotations()[workloadv1alpha1.ProblemAnnotationPrefix+"west"]
	}
	if got := problem(); !strings.HasPrefix(got, notSyncedReason+": ") {
		t.Errorf("the problem is %q, want %s", got, notSyncedReason)
	}
	k.isDone(settings)
	delete(k.leaves.refusing, "west")
	k.pass(settings)
	k.is(settings, "east", "west")
	if got := problem(); got != "" {
		t.Errorf("the problem remains: %q", got)
	}
	k.isDone(settings)
}

// TestIngress tests that an Ingress goes to its backends, and its Secret after it.
func TestIngress(t *testing.T) {
	t.Parallel()
	k := newKCP(t,
		`{kind: Service, metadata: {name: front}, spec: {selector: {app: web}}}`,
		`{kind: Secret, metadata: {name: token}}`,
		`{kind: Ingress, metadata: {name: site}, spec: {tls: [{secretName: token}], rules: [{http: {paths: [
			{backend: {service: {name: front}}}, {backend: {resource: {apiGroup: example.dev, kind: Bucket, name: files}}}]}}]}}`)
	front, site := at(splitter.KindService, "front"), at(KindIngress, "site")
	k.leaves.needed[front] = []string{"east"}
	k.leaves.behind["files"] = []string{"north"}
	k.pass(front)
	if got := k.leaves.selectors[front]; !labels.Equals(got, map[string]string{"app": "web"}) {
		t.Errorf("leaves were asked with the selector %v", got)
	}
	k.pass(site)
	k.is(site, "east", "north")
	k.pass(token)
	k.is(token, "east", "north")
	k.is(front, "east") // it does not go where its Ingress is
	k.isDone(site)
	k.isDone(token)
}

// TestPrecede tests that everything that a leaf needs, also indirectly, is in its cluster before
// it. It stays there until the leaf is known.
func TestPrecede(t *testing.T) {
	t.Parallel()
	k := newKCP(t,
		`{kind: ServiceAccount, metadata: {name: runner}, imagePullSecrets: [{name: token}]}`,
		`{kind: Secret, metadata: {name: token}}`,
		`{kind: Service, metadata: {name: front}, spec: {selector: {app: web}}}`,
		`{kind: Service, metadata: {name: other}, spec: {selector: {app: other}}}`,
		`{kind: ConfigMap, metadata: {name: settings}}`)
	runner, front, other := at(splitter.KindServiceAccount, "runner"), at(splitter.KindService, "front"), at(splitter.KindService, "other")
	leaf := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: web--east, namespace: team}, spec: {template: {
		metadata: {labels: {app: web}}, spec: {serviceAccountName: runner, volumes: [{name: missing, configMap: {name: missing}}]}}}}`), &leaf.Object); err != nil {
		t.Fatal(err)
	}
	if err := k.followers.Precede(t.Context(), deployments, leaf, "east"); err != nil {
		t.Fatal(err)
	}
	for _, of := range []key.Follower{runner, token, front, other, settings} {
		k.deliver(of)
	}
	for _, of := range []key.Follower{runner, token, front} {
		k.is(of, "east")
		k.pass(of)
		k.is(of, "east")
	}
	k.is(other)
	k.is(settings)
	before := k.writes
	if err := k.followers.Precede(t.Context(), deployments, leaf, "east"); err != nil || k.writes != before {
		t.Errorf("a second call has written (%v)", err)
	}
}

func TestIs(t *testing.T) {
	t.Parallel()
	for _, resource := range []string{"configmaps", "services", "ingresses.networking.k8s.io"} {
		if !Is(schema.ParseGroupResource(resource)) {
			t.Errorf("Is(%s) = false", resource)
		}
	}
	for _, resource := range []schema.GroupResource{{Resource: "pods"}, {Group: "example.dev", Resource: "services"}, corev1.Resource("namespaces")} {
		if Is(resource) {
			t.Errorf("Is(%s) = true", resource)
		}
	}
}
