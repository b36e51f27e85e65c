package multicluster

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/testkit/kcptest"
)

// TestBesideAKCP is about what runs beside a kcp. The process's metrics are those of all
// that runs in it, so nothing else does at the same time.
func TestBesideAKCP(t *testing.T) {
	s := kcptest.Start(t)
	t.Run("credentials of syncers", func(t *testing.T) { credentialsOfSyncers(t, s) })
	t.Run("metrics of the commands", func(t *testing.T) { metricsOfTheCommands(t, s) })
}

// credentialsOfSyncers: what the kcp signs for a syncer that is asked for from beside it
// lets that syncer in and nobody else. Those that it is asked for in its process let one
// in in TestKCPCarriesWork.
func credentialsOfSyncers(t *testing.T, s *kcptest.Server) {
	t.Helper()
	clusters := dynamic.NewForConfigOrDie(s.Config).Resource(workloadv1alpha1.SchemeGroupVersion.WithResource("clusters"))
	east, err := clusters.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": workloadv1alpha1.SchemeGroupVersion.String(), "kind": "Cluster", "metadata": map[string]any{"name": "east"},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := requester(s.Config)(t.Context(), "east", east.GetUID())
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	sent := metav1.ListOptions{LabelSelector: workloadv1alpha1.ClusterLabel + "=east"}
	if _, err := client.CoreV1().Secrets("").List(t.Context(), sent); err != nil {
		t.Errorf("listing what is sent to its cluster: %v", err)
	}
	if _, err := client.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("listing everything: %v, want it forbidden", err)
	}
}
