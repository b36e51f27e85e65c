// Package kubeconfig parses kubeconfigs that users give to a control plane. They are untrusted
// input: the control plane connects to the server in them from its own network and with its own
// permissions. A kubeconfig must therefore not run a program, read a file, or send the
// credentials to another server than the one in it.
//
// No error of this package contains any part of its input, because a kubeconfig is a secret, and
// errors appear in conditions and logs.
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

// MaxBytes is the maximum size of a kubeconfig, as in the type Cluster: 256 KiB.
const MaxBytes = 256 << 10

// maxAnswer is the maximum size of a server's response, in bytes. The largest are lists of all
// copied objects of a type.
const maxAnswer = 256 << 20

// The errors of Parse. Each one contains the next step.
var (
	ErrEmpty    = errors.New("the kubeconfig is empty")
	ErrTooLarge = fmt.Errorf("the kubeconfig has more than %d bytes: keep only the context that is used, as \"kubectl config view --minify --flatten\" prints it", MaxBytes)
	ErrForm     = errors.New("the text is not a kubeconfig: use YAML or JSON with apiVersion v1 and kind Config")
	ErrContext  = errors.New("the kubeconfig has no usable current-context: set one whose cluster and user are in the kubeconfig")
	ErrProgram  = errors.New("the user in the kubeconfig needs a program or an auth provider, which a control plane does not run: use a client certificate or a token")
	ErrPath     = errors.New("the kubeconfig refers to files, which the control plane does not have: \"kubectl config view --minify --flatten\" prints a kubeconfig that contains them")
	ErrProxy    = errors.New("the kubeconfig has a proxy, but the control plane connects directly to the server: remove proxy-url")
	ErrServer   = errors.New("the server in the kubeconfig is not a URL of the form https://HOST:PORT")
	ErrPlain    = errors.New("the server in the kubeconfig does not use https, which is allowed only for a loopback address")
	ErrInsecure = errors.New("the kubeconfig does not verify the server's certificate: remove insecure-skip-tls-verify and set certificate-authority-data")
	ErrTLS      = errors.New("the certificates or the key in the kubeconfig cannot be used: each must be PEM in base64, and the certificate must belong to the key")
	ErrIdentity = errors.New("the user in the kubeconfig has no usable credentials: set a client certificate with its key, or a token")
)

// errElsewhere is the error of a request that a server has redirected to another host.
var errElsewhere = errors.New("the server redirected the request to another host, which must not receive the credentials")

// Parse returns a client configuration for the current context of a kubeconfig. It ignores other
// contexts. The result has no rate limit and no timeout. Its transport rejects every request to
// another host than the server, and limits the size of the server's responses.
//
// Parse reads only its argument, and does not connect.
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
	// The texts of these errors could contain parts of the input.
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

// selection is the cluster and the user of the current context.
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
		return selection{}, ErrForm // the text of the parser quotes its input
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

// isLoopback reports whether a host is certainly this machine. Other names than localhost depend
// on name resolution.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// restConfig copies field by field, so that no other field of the kubeconfig has an effect.
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
		// The servers have priority and fairness. A limit here would only delay the work of this
		// cluster.
		QPS: -1, Burst: -1,
	}
}

// only allows requests to one host with one scheme. In particular, it rejects plain HTTP to an
// HTTPS server. The transport adds the credentials to every request, even to one that follows a
// redirect.
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

// WrappedRoundTripper lets client-go find the wrapped transport.
func (o only) WrappedRoundTripper() http.RoundTripper { return o.inner }
