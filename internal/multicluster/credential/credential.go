// Package credential requests the credentials of syncers that run elsewhere. It owns the requests
// for certificates that it makes in a kcp: it approves them, waits for the certificate and deletes
// them.
//
// Writes: CertificateSigningRequests of the kcp.
package credential

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/pki"
)

// signTimeout is how long the kcp may take to sign a certificate.
const signTimeout = 30 * time.Second

// Validity is the lifetime of the credentials of a syncer outside the kcp. The cluster controller
// replaces them when a third of it is left.
const Validity = 30 * 24 * time.Hour

// kcpName is the name of the kcp in a kubeconfig.
const kcpName = "kcp"

// Requester returns a function that requests the kubeconfig of a cluster's syncer from a kcp. The
// user of the connection must be allowed to approve the request. The syncers reach the kcp at the
// address of the connection.
func Requester(kcp *rest.Config) func(ctx context.Context, cluster string, uid types.UID) ([]byte, error) {
	return func(ctx context.Context, cluster string, uid types.UID) ([]byte, error) {
		client, err := kubernetes.NewForConfig(kcp)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeoutCause(ctx, signTimeout, errors.New("the kcp did not sign the certificate in time"))
		defer cancel()
		user := workloadv1alpha1.SyncerUserPrefix + cluster
		certPEM, keyPEM, err := requestCertificate(ctx, client, pki.User(user, string(uid)))
		if err != nil {
			return nil, fmt.Errorf("requesting a certificate of %s from the kcp: %w", user, err)
		}
		return kubeconfigOf(kcp, user, certPEM, keyPEM)
	}
}

func requestCertificate(ctx context.Context, client kubernetes.Interface, user pkix.Name) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if keyPEM, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		return nil, nil, err
	}
	request, err := cert.MakeCSR(key, &user, nil, nil)
	if err != nil {
		return nil, nil, err
	}
	validity := Validity
	name, uid, err := csr.RequestCertificateWithContext(ctx, client, request, "", workloadv1alpha1.SyncerSigner, &validity,
		[]certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature}, key)
	if err != nil {
		return nil, nil, err
	}
	certPEM, err = approved(ctx, client, name, uid)
	return certPEM, keyPEM, errors.Join(err, forget(ctx, client, name))
}

// approved approves a request and waits for its certificate.
func approved(ctx context.Context, client kubernetes.Interface, name string, uid types.UID) ([]byte, error) {
	requests := client.CertificatesV1().CertificateSigningRequests()
	request, err := requests.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue,
		Reason: "SyncerInstalled", Message: "The cluster controller gives it to the syncer that it installs.",
	})
	if _, err := requests.UpdateApproval(ctx, name, request, metav1.UpdateOptions{}); err != nil {
		return nil, err
	}
	return csr.WaitForCertificate(ctx, client, name, uid)
}

// forget deletes a request, whatever its result.
func forget(ctx context.Context, client kubernetes.Interface, name string) error {
	err := client.CertificatesV1().CertificateSigningRequests().Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// kubeconfigOf returns a kubeconfig for the same kcp with another user.
func kubeconfigOf(kcp *rest.Config, user string, certPEM, keyPEM []byte) ([]byte, error) {
	kcp = rest.CopyConfig(kcp)
	if err := rest.LoadTLSFiles(kcp); err != nil {
		return nil, fmt.Errorf("reading the certificates of the connection to the kcp: %w", err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters[kcpName] = &clientcmdapi.Cluster{Server: kcp.Host, TLSServerName: kcp.ServerName, CertificateAuthorityData: kcp.CAData}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: certPEM, ClientKeyData: keyPEM}
	config.Contexts[kcpName] = &clientcmdapi.Context{Cluster: kcpName, AuthInfo: user}
	config.CurrentContext = kcpName
	data, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("writing a syncer's kubeconfig: %w", err)
	}
	return data, nil
}
