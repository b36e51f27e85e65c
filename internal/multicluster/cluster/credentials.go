package cluster

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"rik.dev/rik/internal/multicluster/kubeconfig"
)

// needsRenewal reports whether the credentials in a kubeconfig cannot be used, or have less than
// a third of their lifetime left. Credentials without an expiry do not need renewal.
func needsRenewal(data []byte, now time.Time) bool {
	config, err := kubeconfig.Parse(data)
	if err != nil {
		return true
	}
	from, to, ok := lifeOf(config)
	return ok && !now.Before(to.Add(-to.Sub(from)/3))
}

// lifeOf returns the time in which a client certificate or a token is valid.
func lifeOf(config *rest.Config) (from, to time.Time, ok bool) {
	if block, _ := pem.Decode(config.CertData); block != nil {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return from, to, false
		}
		return certificate.NotBefore, certificate.NotAfter, true
	}
	parts := strings.Split(config.BearerToken, ".")
	if len(parts) != 3 {
		return from, to, false // not a JSON web token
	}
	var claims struct {
		IssuedAt int64 `json:"iat"`
		Expires  int64 `json:"exp"`
	}
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(body, &claims) != nil || claims.Expires == 0 {
		return from, to, false
	}
	return time.Unix(claims.IssuedAt, 0), time.Unix(claims.Expires, 0), true
}

// accountKubeconfig returns a kubeconfig with the address from reached and a token.
func accountKubeconfig(reached *rest.Config, token string) ([]byte, error) {
	const name = "downstream"
	config := api.NewConfig()
	config.Clusters[name] = &api.Cluster{
		Server: reached.Host, TLSServerName: reached.ServerName,
		InsecureSkipTLSVerify: reached.Insecure, CertificateAuthorityData: reached.CAData,
	}
	config.AuthInfos[name] = &api.AuthInfo{Token: token}
	config.Contexts[name] = &api.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	data, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("storing the agent's kubeconfig: %w", err)
	}
	return data, nil
}
