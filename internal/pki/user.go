package pki

import (
	"crypto/x509/pkix"

	"k8s.io/apimachinery/pkg/apis/asn1"
)

// User is the subject of a client certificate for a user who has a UID besides the
// name. Kubernetes' API servers read the UID from the certificate (feature
// AllowParsingUserUIDFromCertAuth), so that authorization can tell one bearer of a name
// from the next.
func User(name, uid string) pkix.Name {
	return pkix.Name{CommonName: name, ExtraNames: []pkix.AttributeTypeAndValue{{Type: asn1.X509UID(), Value: uid}}}
}

// UIDs are those that a parsed subject names. More than one is nobody's.
func UIDs(subject pkix.Name) []string {
	var uids []string
	for _, attribute := range subject.Names {
		if !attribute.Type.Equal(asn1.X509UID()) {
			continue
		}
		uid, _ := attribute.Value.(string) // what is no text names nobody
		uids = append(uids, uid)
	}
	return uids
}
