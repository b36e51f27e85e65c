package kube

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// EnvBin names the folder of the built programs; the tests of make set it.
const EnvBin = "RIK_BIN"

// programs are the paths of Kubernetes' own.
type programs struct{ apiserver, manager string }

// findPrograms looks where EnvBin says, or in the repository's bin. That they are not
// there is a failure: a test left out in silence proves nothing.
func findPrograms() (programs, error) {
	dir := os.Getenv(EnvBin)
	if dir == "" {
		_, self, _, ok := runtime.Caller(0)
		if !ok {
			return programs{}, fmt.Errorf("the source's place is not known: set %s to the folder of the built programs", EnvBin)
		}
		dir = filepath.Join(filepath.Dir(self), "..", "..", "..", "bin")
	}
	p := programs{apiserver: filepath.Join(dir, "kube-apiserver"), manager: filepath.Join(dir, "kube-controller-manager")}
	var missing []error
	for _, path := range []string{p.apiserver, p.manager} {
		if _, err := os.Stat(path); err != nil {
			missing = append(missing, err)
		}
	}
	if len(missing) > 0 {
		return programs{}, fmt.Errorf("looking for Kubernetes' programs (make bin/kube-apiserver bin/kube-controller-manager, or set %s): %w", EnvBin, errors.Join(missing...))
	}
	return p, nil
}

func (c *Cluster) apiserverArgs() []string {
	return append([]string{
		"--etcd-servers=" + c.store.Endpoint().Servers[0],
		"--bind-address=127.0.0.1",
		"--secure-port=" + c.port.number,
		// The port is bound already, so that nobody else gets it.
		"--permit-port-sharing=true",
		"--advertise-address=127.0.0.1",
		// No endpoints of the kubernetes service: they must not be on loopback.
		"--endpoint-reconciler-type=none",
		"--cert-dir=" + c.dir,
		"--tls-cert-file=" + c.creds.path(serverCert),
		"--tls-private-key-file=" + c.creds.path(serverKey),
		"--client-ca-file=" + c.creds.path(caCert),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.creds.path(accountKey),
		"--service-account-signing-key-file=" + c.creds.path(accountKey),
		"--service-cluster-ip-range=10.0.0.0/16",
		"--authorization-mode=RBAC",
		"--allow-privileged=true",
		"--profiling=false",
	}, c.options.APIServerArgs...)
}

func (c *Cluster) managerArgs() []string {
	return []string{
		"--kubeconfig=" + c.creds.path(directKubeconfig),
		"--bind-address=127.0.0.1",
		"--secure-port=0",
		"--leader-elect=false",
		"--controllers=*,-node-lifecycle-controller",
		"--service-account-private-key-file=" + c.creds.path(accountKey),
		"--root-ca-file=" + c.creds.path(caCert),
		"--cluster-signing-cert-file=" + c.creds.path(caCert),
		"--cluster-signing-key-file=" + c.creds.path(caKey),
		"--kube-api-qps=500",
		"--kube-api-burst=1000",
		"--profiling=false",
	}
}
