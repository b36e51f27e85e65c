package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/cluster"
	"rik.dev/rik/internal/testkit/kcptest"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/leak"
	"rik.dev/rik/internal/testkit/output"
	"rik.dev/rik/internal/testkit/poll"
)

func TestMain(m *testing.M) {
	code := kube.RunMain(m, kube.Options{})
	if err := idle.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stopping the kcps of the tests:", err)
		code = max(code, 1)
	}
	os.Exit(leak.After(code))
}

// site is a kcp with a running cluster controller. No syncer and no negotiation run. The tests
// write what those would have written.
type site struct {
	upstream client.Client
	kcp      *kcptest.Server
	log      *output.Buffer
	metrics  *prometheus.Registry
}

// newSite takes a kcp and starts its cluster controller, with short intervals unless change sets
// others.
func newSite(t *testing.T, change func(*cluster.Config)) *site {
	t.Helper()
	s := &site{kcp: idle.take(t), log: &output.Buffer{}, metrics: prometheus.NewRegistry()}
	var err error
	if s.upstream, err = client.New(kcptest.LoopbackConfig(s.kcp), client.Options{Scheme: testScheme(t)}); err != nil {
		t.Fatal(err)
	}
	config := cluster.Config{
		Rest: kcptest.LoopbackConfig(s.kcp), Metrics: s.metrics,
		Logger:       slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		PollInterval: time.Second, ProbeInterval: 200 * time.Millisecond, HeartbeatTimeout: time.Hour,
	}
	if change != nil {
		change(&config)
	}
	s.run(t, config)
	return s
}

// run runs a controller, until the test ends or stop is called.
func (s *site) run(t *testing.T, config cluster.Config) (stop func()) {
	t.Helper()
	c, err := cluster.New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
		if t.Failed() {
			t.Logf("the controller's log:\n%s", s.log)
		}
	})
	t.Cleanup(stop)
	return stop
}

func testScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		workloadv1alpha1.AddToScheme, apiresourcev1alpha1.AddToScheme, corev1.AddToScheme, apiextensionsv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}

func (s *site) create(t *testing.T, object client.Object) {
	t.Helper()
	if err := s.upstream.Create(t.Context(), object); err != nil {
		t.Fatalf("creating %T %s: %v", object, object.GetName(), err)
	}
}

// secret returns a Secret with a kubeconfig under the default key.
func secret(kubeconfig []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "east"}, Data: map[string][]byte{"kubeconfig": kubeconfig},
	}
}

// bySecret returns a Cluster with a name whose kubeconfig is in that Secret.
func bySecret(name string) *workloadv1alpha1.Cluster {
	return &workloadv1alpha1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       workloadv1alpha1.ClusterSpec{KubeconfigSecretRef: &workloadv1alpha1.SecretKeyReference{Namespace: metav1.NamespaceDefault, Name: "east"}},
	}
}

// beat writes a heartbeat, as a syncer does.
func (s *site) beat(t *testing.T, name string) {
	t.Helper()
	body, err := json.Marshal(map[string]any{
		"apiVersion": workloadv1alpha1.SchemeGroupVersion.String(), "kind": "Cluster", "metadata": map[string]any{"name": name},
		"status": map[string]any{
			"lastHeartbeatTime": metav1.Now(),
			"conditions": []metav1.Condition{{Type: workloadv1alpha1.ConditionSyncerReady, Status: metav1.ConditionTrue,
				Reason: "Carrying", Message: "it carries", LastTransitionTime: metav1.Now()}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	target := &workloadv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	err = s.upstream.Status().Patch(t.Context(), target, client.RawPatch(types.ApplyPatchType, body), client.FieldOwner(workloadv1alpha1.FieldManager), client.ForceOwnership)
	if err != nil {
		t.Fatalf("writing a heartbeat: %v", err)
	}
}

func (s *site) get(ctx context.Context, name string) (*workloadv1alpha1.Cluster, error) {
	c := &workloadv1alpha1.Cluster{}
	return c, s.upstream.Get(ctx, client.ObjectKey{Name: name}, c)
}

// awaitReady waits until the condition Ready has a status and a reason, and returns the Cluster.
func (s *site) awaitReady(t *testing.T, name string, status metav1.ConditionStatus, reason string) *workloadv1alpha1.Cluster {
	t.Helper()
	var found *workloadv1alpha1.Cluster
	poll.Until(t, kube.Timeout, fmt.Sprintf("cluster %s is Ready %s for %s", name, status, reason), func(ctx context.Context) error {
		var err error
		if found, err = s.get(ctx, name); err != nil {
			return err
		}
		ready := meta.FindStatusCondition(found.Status.Conditions, workloadv1alpha1.ConditionReady)
		if ready == nil {
			return errors.New("no condition Ready yet")
		}
		if ready.Status != status || ready.Reason != reason {
			return fmt.Errorf("Ready is %s for %s: %s", ready.Status, ready.Reason, ready.Message)
		}
		return nil
	})
	return found
}

func (s *site) imports(ctx context.Context, location string) (map[string]*apiresourcev1alpha1.APIResourceImport, error) {
	list := &apiresourcev1alpha1.APIResourceImportList{}
	if err := s.upstream.List(ctx, list); err != nil {
		return nil, err
	}
	found := map[string]*apiresourcev1alpha1.APIResourceImport{}
	for i := range list.Items {
		if list.Items[i].Spec.Location == location {
			found[list.Items[i].Name] = &list.Items[i]
		}
	}
	return found, nil
}

// agree writes what negotiation writes to an import that is compatible and served.
func (s *site) agree(t *testing.T, name string) {
	t.Helper()
	poll.Until(t, kube.Timeout, "the import "+name+" is agreed on", func(ctx context.Context) error {
		i := &apiresourcev1alpha1.APIResourceImport{}
		if err := s.upstream.Get(ctx, client.ObjectKey{Name: name}, i); err != nil {
			return err
		}
		for _, condition := range []string{apiresourcev1alpha1.ConditionCompatible, apiresourcev1alpha1.ConditionAvailable} {
			meta.SetStatusCondition(&i.Status.Conditions, metav1.Condition{Type: condition, Status: metav1.ConditionTrue, Reason: apiresourcev1alpha1.ReasonNegotiated})
		}
		return s.upstream.Status().Update(ctx, i)
	})
}

// gone waits until an object no longer exists.
func (s *site) gone(t *testing.T, object client.Object) {
	t.Helper()
	poll.Until(t, kube.Timeout, fmt.Sprintf("%T %s is gone", object, object.GetName()), func(ctx context.Context) error {
		err := s.upstream.Get(ctx, client.ObjectKeyFromObject(object), object)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is there"), err)
	})
}

func widget() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"namespace": metav1.NamespaceDefault, "name": "one"},
	}}
}

// accountToken returns a token of an account that may do everything.
func accountToken(t *testing.T, physical *kube.Cluster) string {
	t.Helper()
	name := strings.ToLower(t.Name())
	account, err := physical.Client().CoreV1().ServiceAccounts(metav1.NamespaceDefault).Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: account.Name}},
	}
	if _, err := physical.Client().RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := physical.Client().CoreV1().ServiceAccounts(account.Namespace).CreateToken(t.Context(), account.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return token.Status.Token
}
