// Package signer signs client certificates that were requested with a
// CertificateSigningRequest. A user who may approve requests of a signer decides which requests
// are signed.
//
// The signer rik.dev/syncer is for syncers that run outside a kcp. It signs only certificates
// for the user of one syncer. The certificate contains the UID of the current Cluster and is
// valid only while that Cluster exists. The signer kubernetes.io/kube-apiserver-client is for
// users, as in Kubernetes.
//
// Reads: certificatesigningrequests, clusters. Writes: the status of
// certificatesigningrequests.
package signer

import (
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/util/certificate/csr"
	parse "k8s.io/kubernetes/pkg/apis/certificates/v1"
	"k8s.io/kubernetes/pkg/controller/certificates"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/pki"
)

// maxValidity is the maximum validity of a syncer's certificate. It is also the default.
const maxValidity = 30 * 24 * time.Hour

// Authority signs certificates. A pki.Authority implements it.
type Authority interface {
	SignCSR(csrPEM []byte, subject pkix.Name, validity time.Duration) ([]byte, error)
}

// signer signs the requests for one signer name.
type signer struct {
	client    kubernetes.Interface
	authority Authority
	name      string
	// longest is the validity of a certificate unless a shorter one was requested.
	longest time.Duration
	// decide returns the subject of a certificate, or a refusal. After another error, the request
	// is tried again.
	decide func(ctx context.Context, request *certificatesv1.CertificateSigningRequest) (pkix.Name, error)
}

// refusal is the reason why a request gets no certificate.
type refusal struct{ error }

// Unwrap returns the reason.
func (r refusal) Unwrap() error { return r.error }

func refuse(format string, args ...any) error { return refusal{fmt.Errorf(format, args...)} }

// Run signs for syncers until ctx ends, and returns when it has stopped. The client objects
// must be able to read Clusters.
func Run(ctx context.Context, client kubernetes.Interface, objects metadata.Interface, authority Authority) {
	clusters := objects.Resource(workloadv1alpha1.SchemeGroupVersion.WithResource("clusters"))
	s := signer{client: client, authority: authority, name: workloadv1alpha1.SyncerSigner, longest: maxValidity, decide: syncers{clusters}.decide}
	s.run(ctx, "syncer-signer")
}

func (s signer) run(ctx context.Context, controllerName string) {
	factory := informers.NewSharedInformerFactoryWithOptions(s.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.signerName", s.name).String()
	}))
	controller := certificates.NewCertificateController(ctx, controllerName, s.client, factory.Certificates().V1().CertificateSigningRequests(), s.handle)
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	controller.Run(ctx, 1)
}

// handle signs one request, or sets a condition with the reason of its refusal.
func (s signer) handle(ctx context.Context, request *certificatesv1.CertificateSigningRequest) error {
	if request.Spec.SignerName != s.name || !isOpen(request) {
		return nil
	}
	subject, err := s.decide(ctx, request)
	if refused := (refusal{}); errors.As(err, &refused) {
		return s.fail(ctx, request, refused)
	}
	if err != nil {
		return err // tried again
	}
	certificate, err := s.authority.SignCSR(request.Spec.Request, subject, s.validity(request))
	if err != nil {
		return s.fail(ctx, request, err)
	}
	request = request.DeepCopy()
	request.Status.Certificate = certificate
	return s.update(ctx, request)
}

// isOpen reports whether a request waits for its certificate.
func isOpen(request *certificatesv1.CertificateSigningRequest) bool {
	return len(request.Status.Certificate) == 0 &&
		certificates.IsCertificateRequestApproved(request) && !certificates.HasTrueCondition(request, certificatesv1.CertificateFailed)
}

// syncers decides for the signer of syncers.
type syncers struct{ clusters metadata.ResourceInterface }

func (s syncers) decide(ctx context.Context, request *certificatesv1.CertificateSigningRequest) (pkix.Name, error) {
	wanted, err := wantedBy(request)
	if err != nil {
		return pkix.Name{}, refusal{err}
	}
	cluster, err := s.clusters.Get(ctx, wanted.cluster, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return pkix.Name{}, fmt.Errorf("reading the Cluster of a syncer: %w", err)
	}
	subject, err := wanted.subject(cluster, err == nil)
	if err != nil {
		return pkix.Name{}, refusal{err}
	}
	return subject, nil
}

// identity is the requested identity: the syncer of a Cluster with a name, and optionally with
// a UID.
type identity struct{ cluster, uid string }

// wantedBy returns the syncer that a request names. Other requested properties are ignored or
// refused.
func wantedBy(request *certificatesv1.CertificateSigningRequest) (identity, error) {
	parsed, err := parse.ParseCSR(request.Spec.Request)
	if err != nil {
		return identity{}, fmt.Errorf("reading the request: %w", err)
	}
	name := parsed.Subject.CommonName
	cluster, ok := strings.CutPrefix(name, workloadv1alpha1.SyncerUserPrefix)
	if !ok || len(validation.IsDNS1123Label(cluster)) > 0 {
		return identity{}, fmt.Errorf("the common name is %q: it must be %s and the name of a Cluster", name, workloadv1alpha1.SyncerUserPrefix)
	}
	if len(parsed.Subject.Organization) > 0 {
		return identity{}, fmt.Errorf("the request has the groups %q: a syncer has no groups", parsed.Subject.Organization)
	}
	for _, usage := range request.Spec.Usages {
		if !slices.Contains(usages, usage) {
			return identity{}, fmt.Errorf("the request has the usage %q: the allowed usages are %q", usage, usages)
		}
	}
	uids := pki.UIDs(parsed.Subject)
	if len(uids) > 1 {
		return identity{}, fmt.Errorf("the request has the UIDs %q: a syncer has only the UID of its Cluster", uids)
	}
	return identity{cluster: cluster, uid: strings.Join(uids, "")}, nil
}

// subject returns the user of the current Cluster's syncer, if the request is for that Cluster.
func (i identity) subject(cluster *metav1.PartialObjectMetadata, found bool) (pkix.Name, error) {
	switch {
	case !found:
		return pkix.Name{}, fmt.Errorf("the Cluster %s does not exist: register it first", i.cluster)
	case i.uid != "" && i.uid != string(cluster.UID):
		return pkix.Name{}, fmt.Errorf("the request is for the Cluster %s with the UID %s, and the existing Cluster has the UID %s", i.cluster, i.uid, cluster.UID)
	}
	return pki.User(workloadv1alpha1.SyncerUserPrefix+i.cluster, string(cluster.UID)), nil
}

// usages are the allowed usages of a certificate.
var usages = []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment}

func (s signer) validity(request *certificatesv1.CertificateSigningRequest) time.Duration {
	if request.Spec.ExpirationSeconds == nil {
		return s.longest
	}
	return min(s.longest, csr.ExpirationSecondsToDuration(*request.Spec.ExpirationSeconds))
}

// fail sets a condition on a request that gets no certificate.
func (s signer) fail(ctx context.Context, request *certificatesv1.CertificateSigningRequest, reason error) error {
	request = request.DeepCopy()
	request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue, Reason: "SignerValidationFailure", Message: reason.Error(),
	})
	return s.update(ctx, request)
}

func (s signer) update(ctx context.Context, request *certificatesv1.CertificateSigningRequest) error {
	if _, err := s.client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, request, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("writing the status of the request %s: %w", request.Name, err)
	}
	return nil
}
