package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/cluster"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/poll"
)

// TestClusterIsKept tests one Cluster from registration to detaching.
func TestClusterIsKept(t *testing.T) {
	t.Parallel()
	physical := kube.Shared(t)
	addNode(t, physical, "n1", "4")
	addNode(t, physical, "n2", "2500m")
	s := newSite(t, nil)

	s.create(t, bySecret("east"))
	s.awaitReady(t, "east", metav1.ConditionFalse, workloadv1alpha1.ReasonInvalidKubeConfig)
	s.create(t, secret(physical.Kubeconfig()))
	seen := s.awaitReady(t, "east", metav1.ConditionFalse, workloadv1alpha1.ReasonNoSyncer)
	knowsTheCluster(t, physical, seen)
	s.beat(t, "east")
	s.awaitReady(t, "east", metav1.ConditionTrue, workloadv1alpha1.ReasonClusterReady)

	bringsItsTypesIn(t, s)
	keepsTheUsersStrategy(t, s)
	carriesWhatIsAgreed(t, s)
	settles(t, s)
	letsGo(t, s)
}

func addNode(t *testing.T, physical *kube.Cluster, name, cpu string) {
	t.Helper()
	amounts := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	node, err := physical.Client().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Capacity, node.Status.Allocatable = amounts, amounts
	if _, err := physical.Client().CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func knowsTheCluster(t *testing.T, physical *kube.Cluster, seen *workloadv1alpha1.Cluster) {
	t.Helper()
	system, err := physical.Client().CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	status := seen.Status
	if status.UID != string(system.UID) || !strings.HasPrefix(status.Version, "v1.") || "https://"+status.Location != physical.Rest().Host {
		t.Errorf("status = %+v, want it to know UID, version and location", status)
	}
	if cpu := status.Capacity[corev1.ResourceCPU]; cpu.Cmp(resource.MustParse("6500m")) != 0 {
		t.Errorf("capacity of CPU = %s, want the sum over both nodes", cpu.String())
	}
}

func bringsItsTypesIn(t *testing.T, s *site) {
	t.Helper()
	want := []string{"configmaps.east.v1.core", "deployments.east.v1.apps", "persistentvolumeclaims.east.v1.core",
		"secrets.east.v1.core", "serviceaccounts.east.v1.core", "services.east.v1.core"}
	poll.Until(t, kube.Timeout, "the types are imported", func(ctx context.Context) error {
		found, err := s.imports(ctx, "east")
		if err != nil {
			return err
		}
		var names []string
		for name := range found {
			names = append(names, name)
		}
		if slices.Sort(names); !slices.Equal(names, want) {
			return fmt.Errorf("imports %v, want %v", names, want)
		}
		return nil
	})
}

// A pull corrects the schema, which belongs to the cluster. It does not change the strategy,
// which belongs to the user.
func keepsTheUsersStrategy(t *testing.T, s *site) {
	t.Helper()
	key := client.ObjectKey{Name: "deployments.east.v1.apps"}
	i := &apiresourcev1alpha1.APIResourceImport{}
	if err := s.upstream.Get(t.Context(), key, i); err != nil {
		t.Fatal(err)
	}
	whole := len(i.Spec.OpenAPIV3Schema.Raw)
	i.Spec.SchemaUpdateStrategy = apiresourcev1alpha1.UpdatePublished
	i.Spec.OpenAPIV3Schema.Raw = []byte(`{"type":"object"}`)
	if err := s.upstream.Update(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, kube.Timeout, "the schema is mended", func(ctx context.Context) error {
		if err := s.upstream.Get(ctx, key, i); err != nil {
			return err
		}
		if len(i.Spec.OpenAPIV3Schema.Raw) != whole {
			return fmt.Errorf("the schema has %d bytes, want %d", len(i.Spec.OpenAPIV3Schema.Raw), whole)
		}
		return nil
	})
	if i.Spec.SchemaUpdateStrategy != apiresourcev1alpha1.UpdatePublished {
		t.Errorf("the strategy became %s, want the user's", i.Spec.SchemaUpdateStrategy)
	}
}

func carriesWhatIsAgreed(t *testing.T, s *site) {
	t.Helper()
	s.agree(t, "deployments.east.v1.apps")
	s.agree(t, "configmaps.east.v1.core")
	poll.Until(t, kube.Timeout, "the agreed types are synced", func(ctx context.Context) error {
		c, err := s.get(ctx, "east")
		if err != nil {
			return err
		}
		if want := []string{"configmaps", "deployments.apps"}; !slices.Equal(c.Status.SyncedResources, want) {
			return fmt.Errorf("syncedResources = %v, want %v", c.Status.SyncedResources, want)
		}
		return nil
	})
}

// settles checks that pulls and probes of an unchanged cluster write neither the Cluster nor its
// imports.
func settles(t *testing.T, s *site) {
	t.Helper()
	versions := func() map[string]string {
		c, err := s.get(t.Context(), "east")
		if err != nil {
			t.Fatal(err)
		}
		imports, err := s.imports(t.Context(), "east")
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]string{"": c.ResourceVersion}
		for name, i := range imports {
			found[name] = i.ResourceVersion
		}
		return found
	}
	before := versions()
	timer := time.NewTimer(3 * time.Second) // three pulls, fifteen probes
	defer timer.Stop()
	<-timer.C
	if after := versions(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("something was written although nothing happened:\nbefore %v\nafter  %v", before, after)
	}
}

// letsGo deletes the Cluster. Its imports are deleted, and its syncer's finalizers are removed.
// Those of another cluster stay.
func letsGo(t *testing.T, s *site) {
	t.Helper()
	s.create(t, bySecret("west"))
	held := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: "shared", Labels: map[string]string{workloadv1alpha1.ClusterLabel: "west"},
		Finalizers:  []string{workloadv1alpha1.FinalizerPrefix + "east", workloadv1alpha1.FinalizerPrefix + "west"},
		Annotations: map[string]string{workloadv1alpha1.ProblemAnnotationPrefix + "east": "x", "mine": "y"},
	}}
	s.create(t, held)
	gone := bySecret("east")
	staysWhileItIsEmptied(t, s, gone)
	s.gone(t, gone)
	if err := s.upstream.Get(t.Context(), client.ObjectKeyFromObject(held), held); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(held.Finalizers, []string{workloadv1alpha1.FinalizerPrefix + "west"}) || len(held.Annotations) != 1 {
		t.Errorf("the released object has %v and %v, want what is the other cluster's and the user's", held.Finalizers, held.Annotations)
	}
	if imports, err := s.imports(t.Context(), "east"); err != nil || len(imports) > 0 {
		t.Errorf("imports of the cluster that was detached: %v, %v", imports, err)
	}
	releasesAfterForce(t, s, held)
}

// staysWhileItIsEmptied deletes a Cluster that has the splitter's finalizer. It is managed as
// before until the splitter removes the finalizer.
func staysWhileItIsEmptied(t *testing.T, s *site, gone *workloadv1alpha1.Cluster) {
	t.Helper()
	splitter := func(what string, change func(*workloadv1alpha1.Cluster)) {
		poll.Until(t, kube.Timeout, what, func(ctx context.Context) error {
			c, err := s.get(ctx, gone.Name)
			if err != nil {
				return err
			}
			change(c)
			return s.upstream.Update(ctx, c)
		})
	}
	splitter("the splitter holds the Cluster", func(c *workloadv1alpha1.Cluster) {
		controllerutil.AddFinalizer(c, workloadv1alpha1.SplitterFinalizer)
	})
	if err := s.upstream.Delete(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	wrong := &workloadv1alpha1.Cluster{}
	poll.Until(t, kube.Timeout, "its status is wrong", func(ctx context.Context) error {
		if err := s.upstream.Get(ctx, client.ObjectKeyFromObject(gone), wrong); err != nil {
			return err
		}
		wrong.Status.Location = "elsewhere"
		return s.upstream.Status().Update(ctx, wrong)
	})
	poll.Until(t, kube.Timeout, "its status is kept right", func(ctx context.Context) error {
		c, err := s.get(ctx, gone.Name)
		if err == nil && c.Status.Location == wrong.Status.Location {
			err = errors.New("it is still wrong")
		}
		return err
	})
	if imports, err := s.imports(t.Context(), gone.Name); err != nil || len(imports) == 0 {
		t.Errorf("imports of a Cluster that is being emptied: %v, %v; want them to stay", imports, err)
	}
	splitter("the splitter releases the Cluster", func(c *workloadv1alpha1.Cluster) {
		controllerutil.RemoveFinalizer(c, workloadv1alpha1.SplitterFinalizer)
	})
}

// releasesAfterForce removes the finalizer of a Cluster by force.
func releasesAfterForce(t *testing.T, s *site, held *corev1.ConfigMap) {
	t.Helper()
	poll.Until(t, kube.Timeout, "a Cluster is removed by force", func(ctx context.Context) error {
		c, err := s.get(ctx, "west")
		if err != nil {
			return client.IgnoreNotFound(err)
		}
		c.Finalizers = nil
		if err := s.upstream.Update(ctx, c); err != nil {
			return client.IgnoreNotFound(err)
		}
		if err := s.upstream.Delete(ctx, c, client.Preconditions{ResourceVersion: &c.ResourceVersion}); client.IgnoreNotFound(err) != nil {
			return err
		}
		return nil
	})
	poll.Until(t, kube.Timeout, "its objects are released", func(ctx context.Context) error {
		if err := s.upstream.Get(ctx, client.ObjectKeyFromObject(held), held); err != nil {
			return err
		}
		if len(held.Finalizers) > 0 {
			return fmt.Errorf("finalizers %v", held.Finalizers)
		}
		return nil
	})
}

// TestAChangedKubeconfigTakesEffect tests that a change of the Secret takes effect at once,
// whether the new kubeconfig is valid or not. A kubeconfig of another cluster is not accepted.
func TestAChangedKubeconfigTakesEffect(t *testing.T) {
	t.Parallel()
	physical := kube.Shared(t)
	s := newSite(t, nil)
	credentials := secret(physical.Kubeconfig())
	rotate := func(kubeconfig []byte) {
		t.Helper()
		credentials.Data["kubeconfig"] = kubeconfig
		if err := s.upstream.Update(t.Context(), credentials); err != nil {
			t.Fatal(err)
		}
	}
	s.create(t, credentials)
	s.create(t, bySecret("east"))
	s.awaitReady(t, "east", metav1.ConditionFalse, workloadv1alpha1.ReasonNoSyncer)
	s.beat(t, "east")
	before := s.awaitReady(t, "east", metav1.ConditionTrue, workloadv1alpha1.ReasonClusterReady)

	rotate([]byte("no kubeconfig"))
	s.awaitReady(t, "east", metav1.ConditionFalse, workloadv1alpha1.ReasonInvalidKubeConfig)
	rotate(withToken(t, physical.Kubeconfig(), "nobody-knows-it"))
	s.awaitReady(t, "east", metav1.ConditionFalse, workloadv1alpha1.ReasonInvalidKubeConfig)
	rotate(withToken(t, physical.Kubeconfig(), accountToken(t, physical)))
	s.awaitReady(t, "east", metav1.ConditionTrue, workloadv1alpha1.ReasonClusterReady)

	rotate(flattened(t, s.kcp.DataDir+"/admin.kubeconfig"))
	other := s.awaitReady(t, "east", metav1.ConditionFalse, workloadv1alpha1.ReasonOtherCluster)
	if other.Status.UID != before.Status.UID {
		t.Errorf("the UID became %s, want that of the registered cluster", other.Status.UID)
	}
	rotate(physical.Kubeconfig())
	s.awaitReady(t, "east", metav1.ConditionTrue, workloadv1alpha1.ReasonClusterReady)
}

// withToken returns a kubeconfig that has only a token as its credentials.
func withToken(t *testing.T, kubeconfig []byte, token string) []byte {
	t.Helper()
	return edited(t, kubeconfig, func(c *api.Config) {
		for _, user := range c.AuthInfos {
			*user = api.AuthInfo{Token: token}
		}
	})
}

func edited(t *testing.T, kubeconfig []byte, edit func(*api.Config)) []byte {
	t.Helper()
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	edit(config)
	data, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func flattened(t *testing.T, path string) []byte {
	t.Helper()
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := api.FlattenConfig(config); err != nil {
		t.Fatal(err)
	}
	data, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestAClusterIsUnreachableAndReturns disconnects the cluster and connects it again.
func TestAClusterIsUnreachableAndReturns(t *testing.T) {
	t.Parallel()
	physical := kube.Shared(t).Way(t)
	s := newSite(t, nil)
	s.create(t, secret(physical.Kubeconfig()))
	s.create(t, bySecret("east"))
	s.awaitReady(t, "east", metav1.ConditionFalse, workloadv1alpha1.ReasonNoSyncer)
	s.beat(t, "east")
	s.awaitReady(t, "east", metav1.ConditionTrue, workloadv1alpha1.ReasonClusterReady)
	bringsItsTypesIn(t, s)
	for range 2 {
		physical.Cut()
		away := s.awaitReady(t, "east", metav1.ConditionFalse, workloadv1alpha1.ReasonClusterUnreachable)
		s.awaitEvent(t, "east", corev1.EventTypeWarning, workloadv1alpha1.ReasonClusterUnreachable)
		if away.Status.Version == "" || away.Status.UID == "" {
			t.Errorf("status = %+v, which forgot the cluster that is cut off", away.Status)
		}
		bringsItsTypesIn(t, s) // an error does not remove imports
		physical.Mend(t)
		s.awaitReady(t, "east", metav1.ConditionTrue, workloadv1alpha1.ReasonClusterReady)
		s.awaitEvent(t, "east", corev1.EventTypeNormal, workloadv1alpha1.ReasonClusterReady)
	}
}

// TestHeartbeatMissed tests that a missing heartbeat changes the conditions, and that the next
// heartbeat changes them back.
func TestHeartbeatMissed(t *testing.T) {
	t.Parallel()
	physical := kube.Shared(t)
	s := newSite(t, func(c *cluster.Config) { c.HeartbeatTimeout = 2 * time.Second })
	s.create(t, secret(physical.Kubeconfig()))
	s.create(t, bySecret("east"))
	s.awaitReady(t, "east", metav1.ConditionFalse, workloadv1alpha1.ReasonNoSyncer)
	s.beat(t, "east")
	s.awaitReady(t, "east", metav1.ConditionFalse, workloadv1alpha1.ReasonHeartbeatMissed)
	poll.Until(t, kube.Timeout, "the syncer sends heartbeats again", func(ctx context.Context) error {
		s.beat(t, "east")
		c, err := s.get(ctx, "east")
		if err == nil && !meta.IsStatusConditionTrue(c.Status.Conditions, workloadv1alpha1.ConditionHeartbeatHealthy) {
			err = fmt.Errorf("conditions %v", c.Status.Conditions)
		}
		return err
	})
}

// TestTypeDisappears tests that the import of a removed type is deleted, but not while objects
// of the type are stored.
func TestTypeDisappears(t *testing.T) {
	t.Parallel()
	physical := kube.Shared(t)
	s := newSite(t, func(c *cluster.Config) { c.ResourcesToSync = []string{"widgets.example.com"} })
	downstream, err := client.New(physical.Rest(), client.Options{Scheme: testScheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	if err := downstream.Create(t.Context(), widgets()); err != nil {
		t.Fatal(err)
	}
	s.create(t, widgets())
	s.create(t, secret(physical.Kubeconfig()))
	s.create(t, bySecret("east"))
	offer := &apiresourcev1alpha1.APIResourceImport{ObjectMeta: metav1.ObjectMeta{Name: "widgets.east.v1.example.com"}}
	poll.Until(t, kube.Timeout, "widgets are imported", func(ctx context.Context) error {
		return s.upstream.Get(ctx, client.ObjectKeyFromObject(offer), offer)
	})
	stored := widget()
	poll.Until(t, kube.Timeout, "a widget is stored", func(ctx context.Context) error { return s.upstream.Create(ctx, stored) })

	if err := downstream.Delete(t.Context(), widgets()); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, kube.Timeout, "it is said why the import is kept", func(ctx context.Context) error {
		c, err := s.get(ctx, "east")
		if err != nil {
			return err
		}
		importer := meta.FindStatusCondition(c.Status.Conditions, workloadv1alpha1.ConditionAPIImporterReady)
		if !strings.Contains(importer.Message, "objects of it are stored") {
			return fmt.Errorf("APIImporterReady says %q", importer.Message)
		}
		return s.upstream.Get(ctx, client.ObjectKeyFromObject(offer), offer)
	})
	if err := s.upstream.Delete(t.Context(), stored); err != nil {
		t.Fatal(err)
	}
	s.gone(t, offer)
}

func widgets() *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}}},
		},
	}
}

// TestCanary tests that the credentials of a cluster appear in no status, event, log line or
// metric, even if the server returns them.
func TestCanary(t *testing.T) {
	t.Parallel()
	const canary = "c4n4ry-5ecret"
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = fmt.Fprintf(w, "you said %s\n", r.Header.Get("Authorization"))
	}))
	t.Cleanup(echo.Close)
	physical := kube.Shared(t)
	s := newSite(t, nil)
	inline := func(name string, kubeconfig []byte) *workloadv1alpha1.Cluster {
		return &workloadv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: workloadv1alpha1.ClusterSpec{KubeConfig: string(kubeconfig)}}
	}
	refused := withToken(t, physical.Kubeconfig(), canary)
	s.create(t, inline("refused", refused))
	s.create(t, inline("echo", edited(t, refused, func(c *api.Config) {
		for _, there := range c.Clusters {
			*there = api.Cluster{Server: echo.URL}
		}
	})))
	s.create(t, inline("broken", append([]byte("\t"), refused...)))
	s.awaitReady(t, "refused", metav1.ConditionFalse, workloadv1alpha1.ReasonInvalidKubeConfig)
	s.awaitReady(t, "echo", metav1.ConditionFalse, workloadv1alpha1.ReasonClusterNotReady)
	s.awaitReady(t, "broken", metav1.ConditionFalse, workloadv1alpha1.ReasonInvalidKubeConfig)

	found := map[string]string{"the log": s.log.String()}
	for _, name := range []string{"refused", "echo", "broken"} {
		c, err := s.get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		status, err := json.Marshal(c.Status)
		if err != nil {
			t.Fatal(err)
		}
		found["the status of "+name] = string(status)
	}
	families, err := s.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found["the metrics"] = fmt.Sprint(families)
	// The events must exist, so that the search in them is meaningful.
	for name, reason := range map[string]string{
		"refused": workloadv1alpha1.ReasonInvalidKubeConfig, "echo": workloadv1alpha1.ReasonClusterNotReady, "broken": workloadv1alpha1.ReasonInvalidKubeConfig,
	} {
		found["the event about "+name] = s.awaitEvent(t, name, corev1.EventTypeWarning, reason)
	}
	events, err := s.kcp.Client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found["the events"] = fmt.Sprint(events.Items)
	for where, text := range found {
		if strings.Contains(text, canary) {
			t.Errorf("%s holds the credentials:\n%s", where, text)
		}
	}
	for where, want := range map[string]string{
		"the metrics": "rik_multicluster_cluster_ready", "the status of echo": "[redacted]", "the event about echo": "[redacted]",
	} {
		if !strings.Contains(found[where], want) {
			t.Errorf("%s is %q, want %q in it, or nothing was looked at", where, found[where], want)
		}
	}
}
