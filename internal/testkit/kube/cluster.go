// Package kube runs a real Kubernetes control plane for tests: the kube-apiserver
// and, if asked for, the kube-controller-manager that make builds from the
// k8s.io/kubernetes module, over an embedded etcd of rik's in a process of its own. Everything
// listens on loopback or on unix sockets, needs no root, and is gone with the test,
// even with one that was killed.
//
// There is no scheduler and no kubelet. [Options.Kubelet] plays both: it binds pods
// to one node and says of them what a kubelet would say.
//
// Clients reach the server through a forwarder of this process, which [Cluster.Cut]
// cuts as a broken network does; [Cluster.Stop] kills the server itself. The URL and
// the credentials stay the same through both.
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

// Timeout is how long the package waits for a server, and a good deadline for tests
// that poll one: two busy cores under the race detector are slow.
const Timeout = 3 * time.Minute

// Options say what a cluster consists of besides its API server.
type Options struct {
	// ControllerManager runs Kubernetes' controllers: namespaces, service accounts,
	// garbage collection, Deployments and the rest. Not the one that watches over
	// nodes, which have no kubelet here to renew their leases.
	ControllerManager bool
	// Kubelet keeps one ready node, binds pods to it and sets their status: running and
	// ready, or succeeded where the pod is not to be restarted. Deleted pods go.
	Kubelet bool
	// APIServerArgs are flags for kube-apiserver besides the usual ones.
	APIServerArgs []string
}

// Cluster is a running control plane. Its methods are for one goroutine; what they
// return is for any.
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

// Start runs a cluster for one test, and removes it when the test ends. It returns
// as Run does.
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

// Run runs a cluster whose files lie in dir, which is the caller's to remove once the
// cluster is closed. It returns when the cluster can be worked with: with a controller
// manager, when pods can be made in the default namespace. The end of ctx ends the
// start, not the cluster. Nothing runs when it fails.
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

// run starts the programs, and returns when they work.
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

// ready asks the server past the forwarder, which is cut still.
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

// takesPods waits for what admission and kubelets want of a namespace.
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

// Rest connects as the administrator, without a client-side rate limit. The caller
// owns the result.
func (c *Cluster) Rest() *rest.Config { return c.creds.rest(c.creds.url) }

// Way is another way to the same cluster, with a URL of its own: cutting it leaves all
// others. It is gone with the test. Stop and Restart are for the cluster, not for it.
func (c *Cluster) Way(tb testing.TB) *Cluster {
	tb.Helper()
	way := &Cluster{options: c.options, dir: c.dir, programs: c.programs, endpoint: c.endpoint}
	tb.Cleanup(func() {
		if err := way.Close(); err != nil {
			tb.Errorf("removing a way to the Kubernetes control plane: %v", err)
		}
	})
	if err := way.lead(c); err != nil {
		tb.Fatalf("making a way to the Kubernetes control plane: %v", err)
	}
	return way
}

// lead has the way go to a cluster.
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

// Aside connects as Rest does, past what Cut cuts: for who watches what goes on in a
// cluster that others cannot reach.
func (c *Cluster) Aside() *rest.Config { return c.creds.directRest() }

// Kubeconfig is the same as Rest as a file that holds its certificates in itself.
func (c *Cluster) Kubeconfig() []byte { return c.creds.kubeconfig(c.creds.url) }

// Client is a clientset over Rest.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// Datastore is where etcd clients of this machine reach what the cluster stores.
func (c *Cluster) Datastore() string { return c.endpoint }

// Stop kills the cluster's programs as a power cut would. What they stored stays.
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

// Restart starts a stopped cluster again, with further flags for the API server, and
// returns as Start does.
func (c *Cluster) Restart(tb testing.TB, apiserverArgs ...string) {
	tb.Helper()
	c.Stop()
	c.options.APIServerArgs = append(c.options.APIServerArgs, apiserverArgs...)
	if err := c.run(tb.Context()); err != nil {
		tb.Fatalf("starting the Kubernetes control plane again: %v", err)
	}
}

// Cut ends every connection of clients and refuses new ones until Mend. The cluster's
// own parts still reach each other.
func (c *Cluster) Cut() { c.forward.cut() }

// Mend takes connections again.
func (c *Cluster) Mend(tb testing.TB) {
	tb.Helper()
	if err := c.forward.mend(); err != nil {
		tb.Fatalf("mending the way to the Kubernetes control plane: %v", err)
	}
}

// Close stops everything that Run began, also when that was not all. Once.
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

// await polls until check is content, the process ends or patience does.
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
