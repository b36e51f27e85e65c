package apiserver

import (
	"crypto/x509/pkix"
	"net"
	"net/url"
	"strconv"
	"time"
)

// AdvertisedURL is how other machines reach the server.
func (s *Server) AdvertisedURL() (string, error) {
	address, err := advertised(s.cfg)
	if err != nil {
		return "", err
	}
	port := s.listener.Addr().(*net.TCPAddr).Port
	u := url.URL{Scheme: "https", Host: net.JoinHostPort(address.String(), strconv.Itoa(port))}
	return u.String(), nil
}

// KubeconfigFor lets a user in from other machines, with a new certificate in their
// name that is good for the given time. What they may do is decided elsewhere.
func (s *Server) KubeconfigFor(user pkix.Name, validity time.Duration) ([]byte, error) {
	server, err := s.AdvertisedURL()
	if err != nil {
		return nil, err
	}
	certPEM, keyPEM, err := s.creds.authority.IssueClient(user, validity)
	if err != nil {
		return nil, err
	}
	return kubeconfigFor(s.cfg.ClusterName, server, user.CommonName, s.creds.authority.CertificatePEM(), certPEM, keyPEM)
}
