package credential

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/pki"
)

// signing returns a kcp that signs a request as soon as it is approved. It also returns the
// requests that it has received.
func signing(t *testing.T, certificate string) (*fake.Clientset, *[]*certificatesv1.CertificateSigningRequest) {
	t.Helper()
	client := fake.NewClientset()
	var approved []*certificatesv1.CertificateSigningRequest
	client.PrependReactor("create", "certificatesigningrequests", func(action clienttesting.Action) (bool, runtime.Object, error) {
		request := action.(clienttesting.CreateAction).GetObject().(*certificatesv1.CertificateSigningRequest)
		request.Name, request.UID = "csr-1", "u1" // the fake does not apply generateName
		return false, nil, nil
	})
	client.PrependReactor("update", "certificatesigningrequests", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "approval" {
			return false, nil, nil
		}
		request := action.(clienttesting.UpdateAction).GetObject().(*certificatesv1.CertificateSigningRequest)
		approved = append(approved, request.DeepCopy())
		request.Status.Certificate = []byte(certificate)
		return false, nil, nil
	})
	return client, &approved
}

// TestRequestCertificate tests that a request names the syncer, is approved and is deleted.
func TestRequestCertificate(t *testing.T) {
	t.Parallel()
	client, approved := signing(t, "the certificate")
	certPEM, keyPEM, err := requestCertificate(t.Context(), client, pki.User(workloadv1alpha1.SyncerUserPrefix+"east", "u7"))
	if err != nil || string(certPEM) != "the certificate" || !strings.Contains(string(keyPEM), "PRIVATE KEY") {
		t.Fatalf("requestCertificate = %q, a key of %d bytes, %v", certPEM, len(keyPEM), err)
	}
	if len(*approved) != 1 {
		t.Fatalf("%d requests were approved, want one", len(*approved))
	}
	request := (*approved)[0]
	if request.Spec.SignerName != workloadv1alpha1.SyncerSigner || !slices.Contains(request.Spec.Usages, certificatesv1.UsageClientAuth) {
		t.Errorf("the request is for %s, %v", request.Spec.SignerName, request.Spec.Usages)
	}
	block, _ := pem.Decode(request.Spec.Request)
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || parsed.Subject.CommonName != workloadv1alpha1.SyncerUserPrefix+"east" {
		t.Errorf("the request is for the user %v (%v)", parsed.Subject, err)
	}
	if c := request.Status.Conditions; len(c) != 1 || c[0].Type != certificatesv1.CertificateApproved || c[0].Status != corev1.ConditionTrue {
		t.Errorf("the conditions are %+v", c)
	}
	left(t, client)
}

// TestRequestsDoNotStay tests that a request is deleted when it fails.
func TestRequestsDoNotStay(t *testing.T) {
	t.Parallel()
	client, _ := signing(t, "")
	forbidden := errors.New("the user may not approve")
	client.PrependReactor("update", "certificatesigningrequests", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, forbidden })
	if _, _, err := requestCertificate(t.Context(), client, pki.User("syncer", "u1")); !errors.Is(err, forbidden) {
		t.Errorf("requestCertificate = %v, want %v", err, forbidden)
	}
	left(t, client)
}

// left checks that no request is left.
func left(t *testing.T, client *fake.Clientset) {
	t.Helper()
	list, err := client.CertificatesV1().CertificateSigningRequests().List(context.Background(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("%d requests are left, %v", len(list.Items), err)
	}
}

func TestKubeconfigOf(t *testing.T) {
	t.Parallel()
	kcp := &rest.Config{Host: "https://kcp.example:6443", TLSClientConfig: rest.TLSClientConfig{ServerName: "kcp", CAData: []byte("authority")}, BearerToken: "secret of the administrator"}
	raw, err := kubeconfigOf(kcp, "syncer-east", []byte("certificate"), []byte("key"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(raw), "administrator") {
		t.Error("the kubeconfig of a syncer has the credentials of the connection")
	}
	got, err := clientcmd.Load(raw)
	if err != nil {
		t.Fatal(err)
	}
	cluster, user := got.Clusters[kcpName], got.AuthInfos["syncer-east"]
	if got.CurrentContext != kcpName || cluster == nil || cluster.Server != kcp.Host || string(cluster.CertificateAuthorityData) != "authority" ||
		user == nil || string(user.ClientCertificateData) != "certificate" || string(user.ClientKeyData) != "key" {
		t.Errorf("kubeconfigOf = %s", raw)
	}
}
