package signer

import (
	"context"
	"crypto/x509/pkix"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	parse "k8s.io/kubernetes/pkg/apis/certificates/v1"
)

// userValidity is the default of kube-controller-manager's --cluster-signing-duration.
const userValidity = 365 * 24 * time.Hour

// RunForUsers signs for users until ctx ends, and returns when it has stopped.
func RunForUsers(ctx context.Context, client kubernetes.Interface, authority Authority) {
	s := signer{client: client, authority: authority, name: certificatesv1.KubeAPIServerClientSignerName, longest: userValidity, decide: forUser}
	s.run(ctx, "user-signer")
}

// own are the prefixes of the names of rik's own users and groups. They get their certificates
// elsewhere: nodes join with a token, and the signer of syncers checks the Cluster.
var own = []string{"rik:", "system:rik:"}

// forUser returns the name and the groups of a request as the subject, and ignores its other
// properties.
func forUser(_ context.Context, request *certificatesv1.CertificateSigningRequest) (pkix.Name, error) {
	parsed, err := parse.ParseCSR(request.Spec.Request)
	if err != nil {
		return pkix.Name{}, refuse("reading the request: %w", err)
	}
	subject := pkix.Name{CommonName: parsed.Subject.CommonName, Organization: parsed.Subject.Organization}
	if subject.CommonName == "" {
		return pkix.Name{}, refuse("the common name is empty: it must be the name of the user")
	}
	if names := len(parsed.DNSNames) + len(parsed.IPAddresses) + len(parsed.EmailAddresses) + len(parsed.URIs); names > 0 {
		return pkix.Name{}, refuse("the request has %d server names (SANs): a user has none", names)
	}
	for _, name := range append([]string{subject.CommonName}, subject.Organization...) {
		if name == user.SystemPrivilegedGroup || slices.ContainsFunc(own, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			return pkix.Name{}, refuse("the request is for %q: this signer does not sign certificates of that name", name)
		}
	}
	for _, usage := range request.Spec.Usages {
		if !slices.Contains(usages, usage) {
			return pkix.Name{}, refuse("the request has the usage %q: the allowed usages are %q", usage, usages)
		}
	}
	return subject, nil
}
