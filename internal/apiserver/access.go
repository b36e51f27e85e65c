package apiserver

import (
	"encoding/base64"
	"fmt"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/internal/atomicfile"
)

// RIKConfig is the client configuration of the RIK papers: YAML or JSON with one cluster.
// Files that rik itself writes contain their data inline, in base64.
type RIKConfig struct {
	Cluster RIKCluster `json:"cluster"`
}

// RIKCluster is the address of a cluster with the credentials for it.
type RIKCluster struct {
	Name   string `json:"name"`
	Server string `json:"server"`
	// Servers are the URLs of all servers, if there are several.
	Servers              []string `json:"servers,omitempty"`
	CertificateAuthority string   `json:"certificateAuthority,omitempty"`
	ClientCertificate    string   `json:"clientCertificate,omitempty"`
	ClientKey            string   `json:"clientKey,omitempty"`
}

// adminUser is the name of the user in the administrator's kubeconfig.
const adminUser = "admin"

// writeAccess writes both files with the administrator's credentials. They are written again
// when the port or the list of servers changes, and at every renewal of the certificate.
func (c *credentials) writeAccess(clusterName, serverURL string) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	certPEM, keyPEM := c.admin.PEM()
	var others []otherServer
	urls := []string{}
	for _, s := range c.servers {
		if s.URL != serverURL {
			others = append(others, otherServer{name: clusterName + "-" + s.Name, url: s.URL})
		}
		urls = append(urls, s.URL)
	}
	kubeconfig, err := kubeconfigFor(clusterName, serverURL, adminUser, c.authority.CertificatePEM(), certPEM, keyPEM, others...)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(c.path(KubeconfigFile), kubeconfig); err != nil {
		return err
	}
	rikconfig, err := yaml.Marshal(RIKConfig{Cluster: RIKCluster{
		Name: clusterName, Server: serverURL, Servers: urls,
		CertificateAuthority: base64.StdEncoding.EncodeToString(c.authority.CertificatePEM()),
		ClientCertificate:    base64.StdEncoding.EncodeToString(certPEM),
		ClientKey:            base64.StdEncoding.EncodeToString(keyPEM),
	}})
	if err != nil {
		return fmt.Errorf("encoding the client configuration: %w", err)
	}
	return atomicfile.Write(c.path(RIKConfigFile), rikconfig)
}

// otherServer is another server of the cluster, with the name of its context.
type otherServer struct{ name, url string }

// NamedURL is a server of the cluster with the URL of its API.
type NamedURL struct{ Name, URL string }

// SetServers writes the list of servers into the files of the administrator. The kubeconfig gets a
// context for each other server.
func (s *Server) SetServers(servers []NamedURL) error {
	s.creds.writing.Lock()
	s.creds.servers = servers
	s.creds.writing.Unlock()
	return s.creds.writeAccess(s.cfg.ClusterName, s.url)
}

func kubeconfigFor(clusterName, serverURL, user string, ca, certPEM, keyPEM []byte, others ...otherServer) ([]byte, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters[clusterName] = &clientcmdapi.Cluster{Server: serverURL, CertificateAuthorityData: ca}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: certPEM, ClientKeyData: keyPEM}
	config.Contexts[clusterName] = &clientcmdapi.Context{Cluster: clusterName, AuthInfo: user}
	config.CurrentContext = clusterName
	for _, o := range others {
		config.Clusters[o.name] = &clientcmdapi.Cluster{Server: o.url, CertificateAuthorityData: ca}
		config.Contexts[o.name] = &clientcmdapi.Context{Cluster: o.name, AuthInfo: user}
	}
	out, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("encoding the kubeconfig: %w", err)
	}
	return out, nil
}
