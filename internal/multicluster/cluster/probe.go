package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/excerpt"
)

const (
	// probeTimeout is how long a cluster may take to answer.
	probeTimeout = 5 * time.Second
	// nodesTimeout is how long the list of all nodes may take.
	nodesTimeout = 30 * time.Second
	// nodesPage is the number of nodes in one page of the list.
	nodesPage = 500
	// maxVersion limits the version of a cluster in the status, in bytes.
	maxVersion = 128
	// maxProbe limits a response in bytes. The largest is a page of nodes, which list their
	// images.
	maxProbe = 32 << 20
	// discoveryTimeout is how long a cluster may take to return the types that it serves.
	discoveryTimeout = 30 * time.Second
)

// prober reads the state of a cluster.
type prober struct {
	kube kubernetes.Interface
}

func newProber(config *rest.Config, httpClient *http.Client) (*prober, error) {
	kube, err := kubernetes.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, err
	}
	return &prober{kube: kube}, nil
}

// look reads whether the cluster works and which one it is. If whole is true, it also reads the
// version and the resources of the nodes. Otherwise it copies these from the last probe. A
// cluster that does not allow reading its nodes has no problem for that reason.
func (p *prober) look(ctx context.Context, before probe, whole bool, report func(error) string) probe {
	now := probe{at: time.Now(), uid: before.uid, version: before.version, supply: before.supply}
	now.trouble = p.identify(ctx, &now, report)
	if now.trouble == nil {
		now.trouble = p.readiness(ctx, report)
	}
	if whole && now.trouble == nil {
		p.inventory(ctx, &now)
	}
	return now
}

// identify determines which cluster answers.
func (p *prober) identify(ctx context.Context, now *probe, report func(error) string) *problem {
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, errSilence)
	defer cancel()
	system, err := p.kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return check(ctx, fmt.Errorf("reading the namespace %s, by which a cluster is known: %w", metav1.NamespaceSystem, err), report)
	}
	now.uid = string(system.UID)
	return nil
}

// readiness reads the health of the API server. A server that allows this only for administrators
// has shown by its answer that it works.
func (p *prober) readiness(ctx context.Context, report func(error) string) *problem {
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, errSilence)
	defer cancel()
	err := p.kube.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	if err == nil || apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return check(ctx, fmt.Errorf("asking /readyz: %w", err), report)
}

// errSilence is the cause of a timeout that this package sets.
var errSilence = fmt.Errorf("the cluster did not answer within %s", probeTimeout)

// check classifies an error of a cluster: it was not reached, it does not accept the credentials,
// or it answers but does not work.
func check(ctx context.Context, err error, report func(error) string) *problem {
	if cause := context.Cause(ctx); cause != nil {
		return &problem{workloadv1alpha1.ReasonClusterUnreachable, report(cause)}
	}
	var answer apierrors.APIStatus
	switch {
	case !errors.As(err, &answer):
		return &problem{workloadv1alpha1.ReasonClusterUnreachable, report(err)}
	case apierrors.IsUnauthorized(err):
		return &problem{workloadv1alpha1.ReasonInvalidKubeConfig, "the cluster does not accept the kubeconfig's credentials: put new ones into the kubeconfig"}
	default:
		return &problem{workloadv1alpha1.ReasonClusterNotReady, report(err)}
	}
}

// inventory reads the version and the nodes. Values that cannot be read stay as they were.
func (p *prober) inventory(ctx context.Context, now *probe) {
	ctx, cancel := context.WithTimeout(ctx, nodesTimeout)
	defer cancel()
	if version, err := p.version(ctx); err == nil {
		now.version = version
	}
	if s, err := p.supply(ctx); err == nil {
		now.supply = s
	}
}

func (p *prober) version(ctx context.Context) (string, error) {
	data, err := p.kube.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return "", err
	}
	var info version.Info
	err = json.Unmarshal(data, &info)
	return excerpt.Prefix(info.GitVersion, maxVersion), err
}

// supply adds up the nodes: those of Kubernetes or, if that type does not exist, those of rik.
func (p *prober) supply(ctx context.Context) (supply, error) {
	sum, err := p.sumOf(ctx, "/api/v1/nodes", ofKube)
	if apierrors.IsNotFound(err) {
		return p.sumOf(ctx, "/apis/"+rikv1alpha1.SchemeGroupVersion.String()+"/nodes", ofRik)
	}
	return sum, err
}

// nodes is the used part of a page of nodes of Kubernetes or rik. The amounts stay text until
// they are known to be safe to parse.
type nodes struct {
	Metadata metav1.ListMeta `json:"metadata"`
	Items    []struct {
		Status struct {
			Capacity    map[string]string `json:"capacity"`
			Allocatable map[string]string `json:"allocatable"`
		} `json:"status"`
	} `json:"items"`
}

// sumOf adds up the nodes that a cluster lists at a path. nameOf returns the name in the sum for
// a resource of the nodes.
func (p *prober) sumOf(ctx context.Context, path string, nameOf func(string) corev1.ResourceName) (supply, error) {
	sum := supply{capacity: corev1.ResourceList{}, allocatable: corev1.ResourceList{}}
	for next := ""; ; {
		data, err := p.kube.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").
			Param("limit", strconv.Itoa(nodesPage)).Param("continue", next).Do(ctx).Raw()
		if err != nil {
			return supply{}, err
		}
		var page nodes
		if err := json.Unmarshal(data, &page); err != nil {
			return supply{}, fmt.Errorf("reading the nodes: %w", err)
		}
		for i := range page.Items {
			plus(sum.capacity, page.Items[i].Status.Capacity, nameOf)
			plus(sum.allocatable, page.Items[i].Status.Allocatable, nameOf)
		}
		if next = page.Metadata.Continue; next == "" {
			return sum, nil
		}
	}
}
