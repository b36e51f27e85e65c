// Package admission admits simulated nodes to the cluster of this machine, as the join of a node
// does: each has a Node and a certificate. A [Cluster] connects them to the scheduler.
//
// It uses the credentials of the administrator and the certificate authority from the server's data
// directory.
package admission

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/pki"
)

// validity is the validity of the certificate of a simulated node.
const validity = 24 * time.Hour

// Cluster is the cluster to which simulated nodes are admitted.
type Cluster struct {
	// API creates Nodes.
	API client.Client
	// Authority signs the certificates of the nodes.
	Authority *pki.Authority
	// Scheduler is the address of the scheduler for nodes, host:port.
	Scheduler string
}

// Administrator returns a client with the administrator's kubeconfig.
func Administrator(kubeconfig string) (client.Client, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the administrator's credentials (simulate runs on the server's machine, with its --data-dir): %w", err)
	}
	config.QPS = -1
	scheme := runtime.NewScheme()
	if err := rikv1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}

// Dial connects as a node with a name, with a certificate for it. It is the Dial of a simulation.
func (c *Cluster) Dial(ctx context.Context, node string) (conn grpc.ClientConnInterface, release func(), err error) {
	uid, err := c.admit(ctx, node)
	if err != nil {
		return nil, nil, err
	}
	subject := pkix.Name{CommonName: rikv1alpha1.NodeUserPrefix + node, Organization: []string{rikv1alpha1.GroupNodes}, SerialNumber: string(uid)}
	certPEM, keyPEM, err := c.Authority.IssueClient(subject, validity)
	if err != nil {
		return nil, nil, err
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, nil, fmt.Errorf("loading the certificate of %s: %w", node, err)
	}
	host, _, err := net.SplitHostPort(c.Scheduler)
	if err != nil {
		return nil, nil, fmt.Errorf("--scheduler: %w", err)
	}
	connection, err := grpc.NewClient(c.Scheduler, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: c.Authority.Pool(), ServerName: host, Certificates: []tls.Certificate{pair},
	})), grpc.WithNoProxy())
	if err != nil {
		return nil, nil, err
	}
	return connection, func() { _ = connection.Close() }, nil
}

// admit creates the Node, like the join of a node, and returns its UID.
func (c *Cluster) admit(ctx context.Context, name string) (types.UID, error) {
	n := &rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	err := c.API.Create(ctx, n)
	if apierrors.IsAlreadyExists(err) {
		err = c.API.Get(ctx, client.ObjectKeyFromObject(n), n)
	}
	if err != nil {
		return "", fmt.Errorf("creating node %s: %w", name, err)
	}
	return n.UID, nil
}

// Capacity is the capacity of a node as texts of the command line.
type Capacity struct {
	CPU, Memory, Disk string
	Instances         int64
}

// Allocatable parses the capacity. An error names the flag.
func (c Capacity) Allocatable() (rikv1alpha1.ResourceList, error) {
	list := rikv1alpha1.ResourceList{rikv1alpha1.ResourceInstances: *resource.NewQuantity(c.Instances, resource.DecimalSI)}
	for name, text := range map[rikv1alpha1.ResourceName]string{
		rikv1alpha1.ResourceCPU: c.CPU, rikv1alpha1.ResourceMemory: c.Memory, rikv1alpha1.ResourceDisk: c.Disk,
	} {
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return nil, fmt.Errorf("--%s %q: %w", name, text, err)
		}
		list[name] = q
	}
	return list, nil
}
