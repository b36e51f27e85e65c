package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"time"
)

// maxCSRBytes limits the size of a request from a requester that is not trusted yet. A request
// with a 4096 bit RSA key has less than 2 KiB.
const maxCSRBytes = 16 << 10

// minRSABits is the minimum that current browsers and Go accept.
const minRSABits = 2048

// SignCSR signs the public key of a certificate request for client authentication under the
// given subject. It ignores everything else in the request, including its subject and
// extensions: the caller decides on the subject. It verifies the request's signature, which
// proves that the requester has the private key.
func (a *Authority) SignCSR(csrPEM []byte, subject pkix.Name, validity time.Duration) ([]byte, error) {
	if len(csrPEM) > maxCSRBytes {
		return nil, fmt.Errorf("certificate request has %d bytes, and the limit is %d", len(csrPEM), maxCSRBytes)
	}
	block, _ := pem.Decode(csrPEM)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("no PEM certificate request found")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parsing the certificate request: %w", err)
	}
	if err := checkStrength(request.PublicKey); err != nil {
		return nil, err
	}
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("checking the certificate request's signature: %w", err)
	}
	return a.sign(request.PublicKey, clientTemplate(subject), validity)
}

func checkStrength(key crypto.PublicKey) error {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		if bits := k.Curve.Params().BitSize; bits < 256 {
			return fmt.Errorf("an ECDSA key of %d bits is too weak: use 256 bits or more", bits)
		}
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < minRSABits {
			return fmt.Errorf("an RSA key of %d bits is too weak: use %d bits or more", bits, minRSABits)
		}
	case ed25519.PublicKey:
	default:
		return fmt.Errorf("keys of type %T are not supported", key)
	}
	return nil
}

// IssueClient creates a key and a certificate that authenticates subject to the cluster's
// servers. The common name is the user, and the organizations are the groups.
func (a *Authority) IssueClient(subject pkix.Name, validity time.Duration) (certPEM, keyPEM []byte, err error) {
	return a.issue(clientTemplate(subject), validity)
}

// IssueServer creates a key and a certificate for a server with the given host names and
// addresses.
func (a *Authority) IssueServer(hosts []string, validity time.Duration) (certPEM, keyPEM []byte, err error) {
	if len(hosts) == 0 {
		return nil, nil, errors.New("a server certificate needs at least one host name or address")
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "rik server"},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return a.issue(template, validity)
}

// NewCSR creates a key and a certificate request for it, for a process that requests its
// certificate over the network.
func NewCSR(subject pkix.Name) (csrPEM, keyPEM []byte, err error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		return nil, nil, fmt.Errorf("creating a certificate request: %w", err)
	}
	keyPEM, err = encodeKey(key)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), keyPEM, nil
}

func clientTemplate(subject pkix.Name) *x509.Certificate {
	return &x509.Certificate{
		Subject:     subject,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

func (a *Authority) issue(template *x509.Certificate, validity time.Duration) (certPEM, keyPEM []byte, err error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	certPEM, err = a.sign(key.Public(), template, validity)
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err = encodeKey(key)
	if err != nil {
		return nil, nil, err
	}
	return certPEM, keyPEM, nil
}

// sign completes the template and signs it. A leaf never expires after the authority, because
// verifiers would refuse it with a less clear message.
func (a *Authority) sign(key crypto.PublicKey, template *x509.Certificate, validity time.Duration) ([]byte, error) {
	if validity <= 0 {
		return nil, fmt.Errorf("a certificate's validity must be positive, got %s", validity)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template.SerialNumber = serial
	template.NotBefore = now.Add(-Backdate)
	template.NotAfter = now.Add(validity)
	if template.NotAfter.After(a.certificate.NotAfter) {
		template.NotAfter = a.certificate.NotAfter
	}
	template.BasicConstraintsValid = true
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("signing a certificate for %q: %w", template.Subject, err)
	}
	return encodeCertificate(der), nil
}
