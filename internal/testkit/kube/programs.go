package kube

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"rik.dev/rik/internal/testkit/program"
)

// programs are the paths of Kubernetes' programs, and of the datastore.
type programs struct{ apiserver, manager, store string }

// findPrograms looks in the directory of the built programs. If Kubernetes' programs are missing
// it returns an error, because a skipped test proves nothing.
func findPrograms() (programs, error) {
	dir, err := program.Dir()
	if err != nil {
		return programs{}, err
	}
	p := programs{apiserver: filepath.Join(dir, "kube-apiserver"), manager: filepath.Join(dir, "kube-controller-manager")}
	var missing []error
	for _, path := range []string{p.apiserver, p.manager} {
		if _, err := os.Stat(path); err != nil {
			missing = append(missing, err)
		}
	}
	if len(missing) > 0 {
		return programs{}, fmt.Errorf("looking for Kubernetes' programs (make bin/kube-apiserver bin/kube-controller-manager, or set %s): %w", program.EnvBin, errors.Join(missing...))
	}
	p.store, err = program.Testserver()
	return p, err
}

// lazyCollector returns environment variables with which Go's garbage collector uses less CPU
// and more memory, in programs that are not under test. If GOGC is set, it returns none.
func lazyCollector() []string {
	if os.Getenv("GOGC") != "" {
		return nil
	}
	return []string{"GOGC=300"}
}

func (c *Cluster) apiserverArgs() []string {
	return append([]string{
		"--etcd-servers=" + c.endpoint,
		"--bind-address=127.0.0.1",
		"--secure-port=" + c.port.number,
		// The port is bound already, so that no other process gets it.
		"--permit-port-sharing=true",
		"--advertise-address=127.0.0.1",
		// No endpoints of the kubernetes service, because they must not be on loopback.
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
