// Package kube runs a real Kubernetes control plane for tests: the kube-apiserver and optionally
// the kube-controller-manager. make builds both from the k8s.io/kubernetes module. The datastore
// is rik's embedded etcd in a separate process. Everything listens on loopback or on unix
// sockets, needs no root, and ends with the test, even if the test is killed.
//
// There is no scheduler and no kubelet. [Options.Kubelet] simulates both: it binds pods to one
// node and sets their status as a kubelet would.
//
// Clients connect to the server through a forwarder in this process. [Cluster.Cut] cuts it like
// a broken network. [Cluster.Stop] kills the server itself. The URL and the credentials stay the
// same through both.
package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/testkit/process"
)

// Timeout is how long the package waits for a server. It is also a good deadline for tests that
// poll one: two busy cores under the race detector are slow.
const Timeout = 3 * time.Minute

// Options select the parts of a cluster in addition to its API server.
type Options struct {
	// ControllerManager runs Kubernetes' controllers: namespaces, service accounts, garbage
	// collection, Deployments and the rest. It does not run the node lifecycle controller,
	// because no kubelet renews the leases of nodes here.
	ControllerManager bool
	// Kubelet creates one ready node, binds pods to it and sets their status: running and ready,
	// or succeeded if the pod's restart policy is not Always. It removes deleted pods.
	Kubelet bool
	// APIServerArgs are additional flags for kube-apiserver.
	APIServerArgs []string
}

// Cluster is a running control plane. Only one goroutine may call its methods; any goroutine may
// use their results.
type Cluster struct {
	options  Options
	dir      string
	programs programs
	creds    *credentials
	client   kubernetes.Interface

	port    *reservedPort
	forward *forwarder
	// store is the etcd at endpoint.
	store    *process.Process
	endpoint string

	server, manager *process.Process
	kubelet         *kubelet
}

// Start runs a cluster for one test, and removes it when the test ends. It returns when the
// cluster is usable, like Run.
func Start(tb testing.TB, options Options) *Cluster {
	tb.Helper()
	c, err := Run(tb.Context(), tb.TempDir(), options)
	if err != nil {
		tb.Fatalf("starting a Kubernetes control plane: %v", err)
	}
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Errorf("removing the Kubernetes control plane: %v", err)
		}
	})
	return c
}

// Run runs a cluster whose files are in dir. The caller must remove dir after the cluster is
// closed. Run returns when the cluster is usable: with a controller manager, when pods can be
// created in the default namespace. The end of ctx cancels the start, but does not stop the
// cluster. After an error, no process is left.
func Run(ctx context.Context, dir string, options Options) (*Cluster, error) {
	programs, err := findPrograms()
	if err != nil {
		return nil, err
	}
	c := &Cluster{options: options, dir: dir, programs: programs}
	if err := c.open(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) open(ctx context.Context) error {
	var err error
	if c.port, err = reservePort(); err != nil {
		return err
	}
	if c.forward, err = newForwarder(c.port.address); err != nil {
		return err
	}
	if c.creds, err = newCredentials(c.dir, "https://"+c.forward.port.address, "https://"+c.port.address); err != nil {
		return err
	}
	if c.client, err = kubernetes.NewForConfig(c.Rest()); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	if err := c.openStore(); err != nil {
		return fmt.Errorf("opening the datastore: %w", err)
	}
	return c.run(ctx)
}

func (c *Cluster) openStore() error {
	const ready = "ready "
	var err error
	c.store, err = process.StartWith(lazyCollector(), c.programs.store, filepath.Join(c.dir, "etcd.log"), "datastore", filepath.Join(c.dir, "etcd"))
	if err != nil {
		return err
	}
	line, err := c.store.AwaitLine(ready, Timeout)
	c.endpoint = strings.TrimPrefix(line, ready)
	return err
}

// run starts the programs, and returns when they are ready.
func (c *Cluster) run(ctx context.Context) error {
	var err error
	if c.server, err = process.StartWith(lazyCollector(), c.programs.apiserver, filepath.Join(c.dir, "kube-apiserver.log"), c.apiserverArgs()...); err != nil {
		return err
	}
	if err := await(ctx, c.server, "the API server is ready", c.ready); err != nil {
		return err
	}
	if c.options.ControllerManager {
		c.manager, err = process.StartWith(lazyCollector(), c.programs.manager, filepath.Join(c.dir, "kube-controller-manager.log"), c.managerArgs()...)
		if err != nil {
			return err
		}
		if err := await(ctx, c.manager, "the default namespace takes pods", c.takesPods); err != nil {
			return err
		}
	}
	if c.options.Kubelet {
		if c.kubelet, err = startKubelet(ctx, c.creds.directRest()); err != nil {
			return err
		}
	}
	return c.forward.mend()
}

// ready checks the server without the forwarder, which is still cut.
func (c *Cluster) ready(ctx context.Context) error {
	client, err := rest.HTTPClientFor(c.creds.directRest())
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+c.port.address+"/readyz", nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("readyz answers %s", answer.Status)
	}
	return nil
}

// takesPods waits until a namespace has what admission and kubelets require.
func (c *Cluster) takesPods(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.creds.directRest())
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{}); err != nil {
		return err
	}
	_, err = client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
	return err
}

// Rest connects as the administrator, without a client-side rate limit. The caller owns the
// result.
func (c *Cluster) Rest() *rest.Config { return c.creds.rest(c.creds.url) }

// Way returns another way to the same cluster, with a different URL. Cutting it does not affect
// the others. It ends with the test. Call Stop and Restart only on the cluster itself.
func (c *Cluster) Way(tb testing.TB) *Cluster {
	tb.Helper()
	way := &Cluster{options: c.options, dir: c.dir, programs: c.programs, endpoint: c.endpoint}
	tb.Cleanup(func() {
		if err := way.Close(); err != nil {
			tb.Errorf("removing a forwarder to the Kubernetes control plane: %v", err)
		}
	})
	if err := way.lead(c); err != nil {
		tb.Fatalf("making a forwarder to the Kubernetes control plane: %v", err)
	}
	return way
}

// lead connects the way to a cluster.
func (c *Cluster) lead(to *Cluster) error {
	var err error
	if c.forward, err = newForwarder(to.port.address); err != nil {
		return err
	}
	creds := *to.creds
	creds.url = "https://" + c.forward.port.address
	c.creds = &creds
	if c.client, err = kubernetes.NewForConfig(c.Rest()); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	return c.forward.mend()
}

// Aside connects like Rest, but Cut does not affect it. It is for watching a cluster that others
// cannot reach.
func (c *Cluster) Aside() *rest.Config { return c.creds.directRest() }

// Kubeconfig returns the same as Rest as a file with embedded certificates.
func (c *Cluster) Kubeconfig() []byte { return c.creds.kubeconfig(c.creds.url) }

// Client returns a clientset over Rest.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// Datastore returns the endpoint of the cluster's etcd for clients on this machine.
func (c *Cluster) Datastore() string { return c.endpoint }

// Stop kills the cluster's programs like a power failure. Their stored data stays.
func (c *Cluster) Stop() {
	if c.forward != nil {
		c.forward.cut()
	}
	if c.kubelet != nil {
		c.kubelet.stop()
		c.kubelet = nil
	}
	for _, p := range []**process.Process{&c.manager, &c.server} {
		if *p != nil {
			(*p).Kill()
			*p = nil
		}
	}
}

// Restart starts a stopped cluster again, with additional flags for the API server. It returns
// when the cluster is usable, like Start.
func (c *Cluster) Restart(tb testing.TB, apiserverArgs ...string) {
	tb.Helper()
	c.Stop()
	c.options.APIServerArgs = append(c.options.APIServerArgs, apiserverArgs...)
	if err := c.run(tb.Context()); err != nil {
		tb.Fatalf("starting the Kubernetes control plane again: %v", err)
	}
}

// Cut closes every connection of clients and refuses new ones until Mend. The cluster's own
// parts can still reach each other.
func (c *Cluster) Cut() { c.forward.cut() }

// Mend accepts connections again.
func (c *Cluster) Mend(tb testing.TB) {
	tb.Helper()
	if err := c.forward.mend(); err != nil {
		tb.Fatalf("restoring the connection to the Kubernetes control plane: %v", err)
	}
}

// Close stops everything that Run started, also after a failed start. It may be called only
// once.
func (c *Cluster) Close() error {
	c.Stop()
	var problems []error
	if c.store != nil {
		problems = append(problems, c.store.Stop())
	}
	if c.forward != nil {
		problems = append(problems, c.forward.close())
	}
	if c.port != nil {
		problems = append(problems, c.port.close())
	}
	return errors.Join(problems...)
}

// await polls until check returns nil, the process ends or the timeout expires.
func await(ctx context.Context, p *process.Process, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.Done():
			return fmt.Errorf("waiting until %s: %w\n%s", what, p.Ended(), p.Tail())
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w\n%s", what, err, p.Tail())
		case <-ticker.C:
		}
	}
}
