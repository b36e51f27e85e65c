package facts

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/doctor"
	"rik.dev/rik/internal/riklet/join"
	"rik.dev/rik/internal/version"
)

// maxVersionBytes bounds the answer of a server.
const maxVersionBytes = 64 << 10

// server tries to reach the server. skew is the time of this machine minus the server's, or nil.
func (g *gatherer) server(ctx context.Context) (s doctor.Server, skew *time.Duration) {
	if g.cfg.Server == "" {
		return s, nil
	}
	s.URL = g.cfg.Server
	workers, _, err := join.Addresses(g.cfg.Server)
	if err != nil {
		s.Address = probe(err)
		return s, nil
	}
	s.Host, _, _ = net.SplitHostPort(workers)
	at := func(port int) string { return net.JoinHostPort(s.Host, strconv.Itoa(port)) }
	api := apiAddress(g.cfg.Server, s.Host)
	resolving, cancel := context.WithTimeout(ctx, g.cfg.Timeout)
	_, err = net.DefaultResolver.LookupHost(resolving, s.Host)
	cancel()
	if s.Address = probe(err); err != nil {
		return s, nil
	}
	for _, e := range []doctor.Endpoint{
		{Address: api, Purpose: "the API"},
		{Address: at(g.cfg.WorkersPort), Purpose: "the connections of nodes to the scheduler"},
		{Address: at(g.cfg.NodesPort), Purpose: "the connections of nodes to the controller"},
	} {
		e.Connect = g.connect(ctx, e.Address)
		s.Endpoints = append(s.Endpoints, e)
	}
	if s.Endpoints[0].Connect.Works() {
		skew = g.ask(ctx, api, &s)
	}
	return s, skew
}

// apiAddress returns the host and port of the API.
func apiAddress(server, host string) string {
	if u, err := url.Parse(server); err == nil && u.Port() != "" {
		return net.JoinHostPort(host, u.Port())
	}
	return net.JoinHostPort(host, strconv.Itoa(rikv1alpha1.PortAPI))
}

func (g *gatherer) connect(ctx context.Context, address string) doctor.Probe {
	dialer := net.Dialer{Timeout: g.cfg.Timeout}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return doctor.Probe{Tried: true, Err: excerptOfError(err)}
	}
	_ = conn.Close()
	return doctor.Probe{Tried: true}
}

// ask reads the server's certificate, version and time. The path needs no credentials, so nothing
// secret is sent to a server that is not verified.
func (g *gatherer) ask(ctx context.Context, api string, s *doctor.Server) *time.Duration {
	var presented []*x509.Certificate
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, //nolint:gosec // verified below, to report what is wrong
			VerifyConnection: func(state tls.ConnectionState) error {
				presented = state.PeerCertificates
				return nil
			},
		},
		DisableKeepAlives: true,
	}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: g.cfg.Timeout}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+api+"/version", nil)
	if err != nil {
		return nil
	}
	before := time.Now()
	response, err := client.Do(request)
	after := time.Now()
	if len(presented) > 0 {
		s.Presented = doctor.Certificate{Kind: doctor.KindServer, NotBefore: presented[0].NotBefore, NotAfter: presented[0].NotAfter, Names: namesOf(presented[0])}
		s.Verified = g.verify(presented, s.Host)
	}
	if err != nil {
		return nil
	}
	defer response.Body.Close()
	var answer struct {
		GitVersion string `json:"gitVersion"`
	}
	if body, err := io.ReadAll(io.LimitReader(response.Body, maxVersionBytes)); err == nil && json.Unmarshal(body, &answer) == nil {
		s.Version, _ = version.Split(answer.GitVersion)
	}
	at, err := http.ParseTime(response.Header.Get("Date"))
	if err != nil {
		return nil
	}
	// The header has whole seconds: on average the server's time was half a second later.
	skew := before.Add(after.Sub(before) / 2).Sub(at.Add(500 * time.Millisecond))
	return &skew
}

// verify verifies a server's certificate with the known authorities.
func (g *gatherer) verify(presented []*x509.Certificate, host string) doctor.Probe {
	roots := g.authorities()
	if roots == nil {
		return doctor.Probe{}
	}
	others := x509.NewCertPool()
	for _, c := range presented[1:] {
		others.AddCert(c)
	}
	_, err := presented[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: others, DNSName: host})
	return probe(err)
}
