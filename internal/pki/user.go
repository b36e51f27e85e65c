package pki

import (
	"crypto/x509/pkix"

	"k8s.io/apimachinery/pkg/apis/asn1"
)

// User returns the subject of a client certificate for a user with a name and a UID. Kubernetes'
// API servers read the UID from the certificate (feature AllowParsingUserUIDFromCertAuth), so
// that authorization can distinguish successive users with the same name.
func User(name, uid string) pkix.Name {
	return pkix.Name{CommonName: name, ExtraNames: []pkix.AttributeTypeAndValue{{Type: asn1.X509UID(), Value: uid}}}
}

// UIDs returns the UIDs in a parsed subject. A subject with more than one UID is invalid.
func UIDs(subject pkix.Name) []string {
	var uids []string
	for _, attribute := range subject.Names {
		if !attribute.Type.Equal(asn1.X509UID()) {
			continue
		}
		uid, _ := attribute.Value.(string) // a value that is not text names no user
		uids = append(uids, uid)
	}
	return uids
}
