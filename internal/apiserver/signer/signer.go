// Package signer signs the certificates of syncers that run outside of a kcp. Whoever
// may approve CertificateSigningRequests of the signer rik.dev/syncer decides which;
// what is signed is a client certificate for the user of one syncer, and nothing else.
//
// Reads: certificatesigningrequests. Writes: their status.
package signer

import (
	"context"
	"crypto/x509/pkix"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate/csr"
	parse "k8s.io/kubernetes/pkg/apis/certificates/v1"
	"k8s.io/kubernetes/pkg/controller/certificates"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// maxValidity of a certificate, which is also what one gets that asks for nothing.
const maxValidity = 30 * 24 * time.Hour

// Authority signs; a pki.Authority does.
type Authority interface {
	SignCSR(csrPEM []byte, subject pkix.Name, validity time.Duration) ([]byte, error)
}

type signer struct {
	client    kubernetes.Interface
	authority Authority
}

// Run signs until ctx ends, and returns when it has stopped.
func Run(ctx context.Context, client kubernetes.Interface, authority Authority) {
	s := signer{client: client, authority: authority}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.signerName", workloadv1alpha1.SyncerSigner).String()
	}))
	controller := certificates.NewCertificateController(ctx, "syncer-signer", client, factory.Certificates().V1().CertificateSigningRequests(), s.handle)
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	controller.Run(ctx, 1)
}

// handle signs one request, or says on it why not.
func (s signer) handle(ctx context.Context, request *certificatesv1.CertificateSigningRequest) error {
	if !isOpen(request) {
		return nil
	}
	subject, err := subjectOf(request)
	if err != nil {
		return s.fail(ctx, request, err)
	}
	certificate, err := s.authority.SignCSR(request.Spec.Request, subject, validity(request))
	if err != nil {
		return s.fail(ctx, request, err)
	}
	request = request.DeepCopy()
	request.Status.Certificate = certificate
	return s.update(ctx, request)
}

// isOpen says whether a request waits for its certificate.
func isOpen(request *certificatesv1.CertificateSigningRequest) bool {
	return request.Spec.SignerName == workloadv1alpha1.SyncerSigner && len(request.Status.Certificate) == 0 &&
		certificates.IsCertificateRequestApproved(request) && !certificates.HasTrueCondition(request, certificatesv1.CertificateFailed)
}

// subjectOf is the user of a syncer that the request names, without anything else that
// it asks for.
func subjectOf(request *certificatesv1.CertificateSigningRequest) (pkix.Name, error) {
	parsed, err := parse.ParseCSR(request.Spec.Request)
	if err != nil {
		return pkix.Name{}, fmt.Errorf("reading the request: %w", err)
	}
	name := parsed.Subject.CommonName
	cluster, ok := strings.CutPrefix(name, workloadv1alpha1.SyncerUserPrefix)
	if !ok || len(validation.IsDNS1123Label(cluster)) > 0 {
		return pkix.Name{}, fmt.Errorf("the common name is %q: it has to be %s before the name of a Cluster", name, workloadv1alpha1.SyncerUserPrefix)
	}
	if len(parsed.Subject.Organization) > 0 {
		return pkix.Name{}, fmt.Errorf("the request asks for the groups %q: a syncer is in none", parsed.Subject.Organization)
	}
	for _, usage := range request.Spec.Usages {
		if !slices.Contains(usages, usage) {
			return pkix.Name{}, fmt.Errorf("the request asks for the usage %q: it may be of %q", usage, usages)
		}
	}
	return pkix.Name{CommonName: name}, nil
}

// usages are what a certificate may be for.
var usages = []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment}

func validity(request *certificatesv1.CertificateSigningRequest) time.Duration {
	if request.Spec.ExpirationSeconds == nil {
		return maxValidity
	}
	return min(maxValidity, csr.ExpirationSecondsToDuration(*request.Spec.ExpirationSeconds))
}

// fail says on a request that it will get no certificate.
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
