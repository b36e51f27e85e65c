package apiserver

import (
	"crypto/x509/pkix"
	"net"
	"net/url"
	"strconv"
	"time"
)

// AdvertisedURL returns the URL at which other machines reach the server.
func (s *Server) AdvertisedURL() (string, error) {
	address, err := advertised(s.cfg)
	if err != nil {
		return "", err
	}
	port := s.listener.Addr().(*net.TCPAddr).Port
	u := url.URL{Scheme: "https", Host: net.JoinHostPort(address.String(), strconv.Itoa(port))}
	return u.String(), nil
}

// KubeconfigFor returns a kubeconfig for a user on another machine, with a new certificate of
// the given validity. Permissions are granted elsewhere.
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
