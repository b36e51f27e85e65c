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
	Name                 string `json:"name"`
	Server               string `json:"server"`
	CertificateAuthority string `json:"certificateAuthority,omitempty"`
	ClientCertificate    string `json:"clientCertificate,omitempty"`
	ClientKey            string `json:"clientKey,omitempty"`
}

// adminUser is the name of the user in the administrator's kubeconfig.
const adminUser = "admin"

// writeAccess writes both files with the administrator's credentials. They are written again
// when the port changes and at every renewal of the certificate.
func (c *credentials) writeAccess(clusterName, serverURL string) error {
	certPEM, keyPEM := c.admin.PEM()
	kubeconfig, err := kubeconfigFor(clusterName, serverURL, adminUser, c.authority.CertificatePEM(), certPEM, keyPEM)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(c.path(KubeconfigFile), kubeconfig); err != nil {
		return err
	}
	rikconfig, err := yaml.Marshal(RIKConfig{Cluster: RIKCluster{
		Name: clusterName, Server: serverURL,
		CertificateAuthority: base64.StdEncoding.EncodeToString(c.authority.CertificatePEM()),
		ClientCertificate:    base64.StdEncoding.EncodeToString(certPEM),
		ClientKey:            base64.StdEncoding.EncodeToString(keyPEM),
	}})
	if err != nil {
		return fmt.Errorf("encoding the client configuration: %w", err)
	}
	return atomicfile.Write(c.path(RIKConfigFile), rikconfig)
}

func kubeconfigFor(clusterName, serverURL, user string, ca, certPEM, keyPEM []byte) ([]byte, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters[clusterName] = &clientcmdapi.Cluster{Server: serverURL, CertificateAuthorityData: ca}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: certPEM, ClientKeyData: keyPEM}
	config.Contexts[clusterName] = &clientcmdapi.Context{Cluster: clusterName, AuthInfo: user}
	config.CurrentContext = clusterName
	out, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("encoding the kubeconfig: %w", err)
	}
	return out, nil
}
