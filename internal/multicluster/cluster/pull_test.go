package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/cluster"
	"rik.dev/rik/internal/multicluster/cluster/pull"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/poll"
)

// TestPullModeInstallsAnAgent tests that the agent has the permissions to copy objects and no
// others. It changes only when necessary, and is removed when the mode changes.
func TestPullModeInstallsAnAgent(t *testing.T) {
	t.Parallel()
	physical := kube.Start(t, kube.Options{ControllerManager: true})
	var made int
	s := newSite(t, func(c *cluster.Config) {
		c.SyncerImage = "registry.example/syncer:1"
		c.Credentials = func(_ context.Context, name string, _ types.UID) ([]byte, error) {
			made++
			return []byte("apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n" +
				"clusters: [{name: a, cluster: {server: \"https://192.0.2.1:6443\"}}]\nusers: [{name: a, user: {token: of-" + name + "}}]\n"), nil
		}
	})
	s.create(t, secret(physical.Kubeconfig()))
	registered := bySecret("east")
	registered.Spec.SyncMode = workloadv1alpha1.SyncPull
	s.create(t, registered)
	s.awaitReady(t, "east", metav1.ConditionFalse, workloadv1alpha1.ReasonNoHeartbeat)
	s.agree(t, "configmaps.east.v1.core")
	home := pull.Namespace(registered.UID)

	agent := awaitAgent(t, physical, home)
	s.awaitEvent(t, "east", corev1.EventTypeNormal, "SyncerInstalled")
	mayCarryAndNoMore(t, physical, registered, home)
	settles(t, s)
	if after := awaitAgent(t, physical, home); after != agent || made != 1 {
		t.Errorf("the agent's version went from %s to %s with %d sets of credentials, want nothing to change", agent, after, made)
	}

	c, err := s.get(t.Context(), "east")
	if err != nil {
		t.Fatal(err)
	}
	c.Spec.SyncMode = workloadv1alpha1.SyncNone
	if err := s.upstream.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, kube.Timeout, "the agent is gone", func(ctx context.Context) error {
		_, err := physical.Client().CoreV1().Namespaces().Get(ctx, home, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = physical.Client().RbacV1().ClusterRoles().Get(ctx, pull.ClusterScoped(registered.UID), metav1.GetOptions{})
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is there"), err)
	})
}

// awaitAgent returns the version of the agent's Deployment.
func awaitAgent(t *testing.T, physical *kube.Cluster, home string) string {
	t.Helper()
	var version string
	poll.Until(t, kube.Timeout, "the agent is installed", func(ctx context.Context) error {
		d, err := physical.Client().AppsV1().Deployments(home).Get(ctx, pull.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		version = fmt.Sprint(d.Generation)
		return nil
	})
	return version
}

// mayCarryAndNoMore tests the permissions of the agent's account.
func mayCarryAndNoMore(t *testing.T, physical *kube.Cluster, registered *workloadv1alpha1.Cluster, home string) {
	t.Helper()
	account := asAccount(t, physical, home)
	namespace := func(name string, annotations map[string]string) error {
		_, err := account.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}, metav1.CreateOptions{})
		return err
	}
	configMap := func(namespace string) error {
		_, err := account.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "carried"}}, metav1.CreateOptions{})
		return err
	}
	locator := map[string]string{workloadv1alpha1.LocatorAnnotation: `{"upstreamUID":"1","cluster":"east","clusterUID":"` + string(registered.UID) + `","namespace":"shop"}`}
	// The policy and the account's role take effect after a moment, in any order. Until the role
	// does, a write is forbidden for that reason, and not by the policy.
	poll.Until(t, kube.Timeout, "the agent's policy holds", func(context.Context) error {
		if err := configMap(metav1.NamespaceDefault); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
			return fmt.Errorf("writing in the default namespace: %w", errors.Join(err, deleteCarried(t, physical)))
		}
		return namespace("kcp-shop", locator)
	})
	poll.Until(t, kube.Timeout, "the agent writes in its namespace", func(context.Context) error { return configMap("kcp-shop") })
	other := map[string]string{workloadv1alpha1.LocatorAnnotation: `{"clusterUID":"another"}`}
	for what, err := range map[string]error{
		"making a namespace without a locator":      namespace("kcp-bare", nil),
		"making a namespace with another's locator": namespace("kcp-other", other),
		"writing in the default namespace":          configMap(metav1.NamespaceDefault),
		"writing in its own namespace":              configMap(home),
		"deleting outside":                          account.CoreV1().ConfigMaps(metav1.NamespaceSystem).Delete(t.Context(), "kube-root-ca.crt", metav1.DeleteOptions{}),
		"deleting a namespace":                      account.CoreV1().Namespaces().Delete(t.Context(), "kcp-shop", metav1.DeleteOptions{}),
		"listing what is not carried":               listing(account.CoreV1().Pods("kcp-shop").List(t.Context(), metav1.ListOptions{})),
		"listing namespaces":                        listing(account.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want it forbidden", what, err)
		}
	}
	if err := account.CoreV1().ConfigMaps("kcp-shop").Delete(t.Context(), "carried", metav1.DeleteOptions{}); err != nil {
		t.Errorf("deleting what it made: %v", err)
	}
}

func listing[T any](_ T, err error) error { return err }

// deleteCarried deletes what was written before the policy took effect.
func deleteCarried(t *testing.T, physical *kube.Cluster) error {
	t.Helper()
	err := physical.Client().CoreV1().ConfigMaps(metav1.NamespaceDefault).Delete(t.Context(), "carried", metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// asAccount connects with a token of the agent's account.
func asAccount(t *testing.T, physical *kube.Cluster, home string) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(asAccountConfig(t, physical, home))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func asAccountConfig(t *testing.T, physical *kube.Cluster, home string) *rest.Config {
	t.Helper()
	token, err := physical.Client().CoreV1().ServiceAccounts(home).CreateToken(t.Context(), pull.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(physical.Rest())
	config.BearerToken, config.QPS = token.Status.Token, -1
	return config
}
