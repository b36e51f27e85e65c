// Package kubeconfig reads kubeconfigs that users hand to a control plane. They are
// hostile input: what one names is reached from the control plane's network and read
// with its rights, so nothing in one may run a program, read a file, or send the
// credentials anywhere but to the server that it names.
//
// No error of this package holds a word of what was read: a kubeconfig is a secret,
// and errors end up in conditions and logs.
package kubeconfig

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"rik.dev/rik/internal/multicluster/bounded"
)

// MaxBytes bounds a kubeconfig, as the type Cluster does: 256 KiB.
const MaxBytes = 256 << 10

// maxAnswer bounds an answer of a server, in bytes: the largest are lists of all that is
// carried of a type.
const maxAnswer = 256 << 20

// What can be wrong with a kubeconfig. Every error of Parse is one of these, with the
// next step in its text.
var (
	ErrEmpty    = errors.New("the kubeconfig is empty")
	ErrTooLarge = fmt.Errorf("the kubeconfig has more than %d bytes: keep the one context that is used, as \"kubectl config view --minify --flatten\" prints it", MaxBytes)
	ErrForm     = errors.New("this is no kubeconfig: give YAML or JSON with apiVersion v1 and kind Config")
	ErrContext  = errors.New("the kubeconfig has no usable current-context: set one whose cluster and user are in it")
	ErrProgram  = errors.New("the kubeconfig's user runs a program or an auth provider, which a control plane does not: give it a client certificate or a token")
	ErrPath     = errors.New("the kubeconfig names files, which are not on the control plane: \"kubectl config view --minify --flatten\" prints it with their content")
	ErrProxy    = errors.New("the kubeconfig names a proxy: the control plane speaks to the server alone, so take proxy-url away")
	ErrServer   = errors.New("the kubeconfig's server is no URL of the form https://HOST:PORT")
	ErrPlain    = errors.New("the kubeconfig's server is not https: that is possible on a loopback address only")
	ErrInsecure = errors.New("the kubeconfig does not verify the server's certificate: take insecure-skip-tls-verify away and give certificate-authority-data")
	ErrTLS      = errors.New("the kubeconfig's certificates or key cannot be used: each is PEM in base64, and the certificate belongs to the key")
	ErrIdentity = errors.New("the kubeconfig's user has no usable credentials: give it either a client certificate with its key or a token")
)

// errElsewhere is what a server gets that sends clients to another host.
var errElsewhere = errors.New("the server sent the client to another host, where the credentials do not go")

// Parse makes a client configuration of a kubeconfig's current context. Other contexts
// are not looked at. The result has no rate limit and no timeout of its own, and its
// transport refuses every request to another host than the server, and bounds the
// server's answers.
//
// It reads nothing but its argument and connects to nothing.
func Parse(data []byte) (*rest.Config, error) {
	chosen, err := current(data)
	if err != nil {
		return nil, err
	}
	server, err := checkServer(chosen.cluster)
	if err != nil {
		return nil, err
	}
	if err := checkUser(chosen.user); err != nil {
		return nil, err
	}
	config := chosen.restConfig()
	// The texts of these errors could hold what was read.
	if _, err := rest.TLSConfigFor(config); err != nil {
		return nil, ErrTLS
	}
	if _, err := rest.HTTPWrappersForConfig(config, http.DefaultTransport); err != nil {
		return nil, ErrIdentity
	}
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper {
		return bounded.Answers(only{scheme: server.Scheme, host: server.Host, inner: inner}, maxAnswer)
	})
	return config, nil
}

// selection is what the current context of a kubeconfig names.
type selection struct {
	cluster *api.Cluster
	user    *api.AuthInfo
}

func current(data []byte) (selection, error) {
	switch {
	case len(data) > MaxBytes:
		return selection{}, ErrTooLarge
	case len(strings.TrimSpace(string(data))) == 0:
		return selection{}, ErrEmpty
	}
	loaded, err := clientcmd.Load(data)
	if err != nil {
		return selection{}, ErrForm // the parser's text quotes its input
	}
	chosen := loaded.Contexts[loaded.CurrentContext]
	if chosen == nil {
		return selection{}, ErrContext
	}
	s := selection{cluster: loaded.Clusters[chosen.Cluster], user: loaded.AuthInfos[chosen.AuthInfo]}
	if s.cluster == nil || s.user == nil {
		return selection{}, ErrContext
	}
	return s, nil
}

func checkServer(c *api.Cluster) (*url.URL, error) {
	switch {
	case c.CertificateAuthority != "":
		return nil, ErrPath
	case c.ProxyURL != "":
		return nil, ErrProxy
	}
	server, err := url.Parse(c.Server)
	if err != nil || server.Hostname() == "" || server.User != nil || server.RawQuery != "" || server.Fragment != "" ||
		(server.Scheme != "https" && server.Scheme != "http") {
		return nil, ErrServer
	}
	switch loopback := isLoopback(server.Hostname()); {
	case server.Scheme == "http" && !loopback:
		return nil, ErrPlain
	case c.InsecureSkipTLSVerify && !loopback:
		return nil, ErrInsecure
	}
	return server, nil
}

func checkUser(u *api.AuthInfo) error {
	switch {
	case u.Exec != nil || u.AuthProvider != nil:
		return ErrProgram
	case u.ClientCertificate != "" || u.ClientKey != "" || u.TokenFile != "":
		return ErrPath
	case (len(u.ClientCertificateData) == 0) != (len(u.ClientKeyData) == 0):
		return ErrTLS
	case len(u.ClientCertificateData) == 0 && u.Token == "" && u.Username == "":
		return ErrIdentity
	case u.Impersonate == "" && (u.ImpersonateUID != "" || len(u.ImpersonateGroups) > 0 || len(u.ImpersonateUserExtra) > 0):
		return ErrIdentity
	}
	return nil
}

// isLoopback says whether a host is this machine for certain: names other than
// localhost are decided by whoever answers for them.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// restConfig is built field by field: what is not copied here cannot come in.
func (s selection) restConfig() *rest.Config {
	return &rest.Config{
		Host:        s.cluster.Server,
		BearerToken: s.user.Token,
		Username:    s.user.Username,
		Password:    s.user.Password,
		Impersonate: rest.ImpersonationConfig{
			UserName: s.user.Impersonate, UID: s.user.ImpersonateUID,
			Groups: s.user.ImpersonateGroups, Extra: s.user.ImpersonateUserExtra,
		},
		TLSClientConfig: rest.TLSClientConfig{
			Insecure: s.cluster.InsecureSkipTLSVerify, ServerName: s.cluster.TLSServerName,
			CAData: s.cluster.CertificateAuthorityData, CertData: s.user.ClientCertificateData, KeyData: s.user.ClientKeyData,
		},
		// The servers have priority and fairness; a limit here only makes one
		// cluster's work wait for itself.
		QPS: -1, Burst: -1,
	}
}

// only lets requests to one host pass, and none in plain text to one of https. The transport adds the credentials to every
// request, also to the one with which it would follow a redirect.
type only struct {
	scheme, host string
	inner        http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (o only) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != o.scheme || r.URL.Host != o.host {
		return nil, errElsewhere
	}
	return o.inner.RoundTrip(r)
}

// WrappedRoundTripper lets client-go find the transport below.
func (o only) WrappedRoundTripper() http.RoundTripper { return o.inner }
