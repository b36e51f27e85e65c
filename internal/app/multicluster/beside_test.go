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
	"rik.dev/rik/internal/multicluster/credential"
	"rik.dev/rik/internal/testkit/kcptest"
)

// TestBesideAKCP tests programs that run in addition to a kcp. The metrics of a process are those
// of everything in it, so no other test runs at the same time.
func TestBesideAKCP(t *testing.T) {
	s := kcptest.Start(t)
	t.Run("credentials of syncers", func(t *testing.T) { credentialsOfSyncers(t, s) })
	t.Run("metrics of the commands", func(t *testing.T) { metricsOfTheCommands(t, s) })
}

// credentialsOfSyncers tests a program outside the kcp that requests a certificate for a syncer.
// The certificate gives access to that syncer only. TestKCPSyncsADeployment tests the certificates
// that are requested inside the kcp's process.
func credentialsOfSyncers(t *testing.T, s *kcptest.Server) {
	t.Helper()
	clusters := dynamic.NewForConfigOrDie(s.Config).Resource(workloadv1alpha1.SchemeGroupVersion.WithResource("clusters"))
	east, err := clusters.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": workloadv1alpha1.SchemeGroupVersion.String(), "kind": "Cluster", "metadata": map[string]any{"name": "east"},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := credential.Requester(s.Config)(t.Context(), "east", east.GetUID())
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
