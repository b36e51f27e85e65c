package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

const (
	// probeTimeout is how long a cluster may take to answer.
	probeTimeout = 5 * time.Second
	// nodesTimeout is the same for the list of all of its nodes.
	nodesTimeout = 30 * time.Second
	// nodesPage is how many nodes are asked for at once.
	nodesPage = 500
	// maxVersion bounds what a cluster says of its version, in bytes.
	maxVersion = 128
	// maxProbe bounds an answer, in bytes: a page of nodes, which name their images.
	maxProbe = 32 << 20
	// discoveryTimeout is how long a cluster may take to say what it serves.
	discoveryTimeout = 30 * time.Second
)

// prober asks a cluster how it is.
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

// look asks whether the cluster works and which it is. The version and what its nodes
// have are asked for as well when whole is set, else taken from the probe before. A
// cluster that does not let its nodes be seen is not worse for it.
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

// identify finds out which cluster answers.
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

// readiness asks what the API server says of itself. One that shows this to
// administrators only has shown by answering that it works.
func (p *prober) readiness(ctx context.Context, report func(error) string) *problem {
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, errSilence)
	defer cancel()
	err := p.kube.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	if err == nil || apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return check(ctx, fmt.Errorf("asking /readyz: %w", err), report)
}

// errSilence is the cause of our own deadline.
var errSilence = fmt.Errorf("the cluster gave no answer within %s", probeTimeout)

// check says what an error means for a cluster: it was not reached, it takes these
// credentials for nobody's, or it answers and does not work.
func check(ctx context.Context, err error, report func(error) string) *problem {
	if cause := context.Cause(ctx); cause != nil {
		return &problem{workloadv1alpha1.ReasonClusterUnreachable, report(cause)}
	}
	var answer apierrors.APIStatus
	switch {
	case !errors.As(err, &answer):
		return &problem{workloadv1alpha1.ReasonClusterUnreachable, report(err)}
	case apierrors.IsUnauthorized(err):
		return &problem{workloadv1alpha1.ReasonInvalidKubeConfig, "the cluster does not know the kubeconfig's user: give new credentials"}
	default:
		return &problem{workloadv1alpha1.ReasonClusterNotReady, report(err)}
	}
}

// inventory fills in the version and the nodes. What cannot be read stays as it was.
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
	return strings.ToValidUTF8(info.GitVersion[:min(len(info.GitVersion), maxVersion)], ""), err
}

// supply sums up the nodes: Kubernetes' own or, where there is no such type, rik's.
func (p *prober) supply(ctx context.Context) (supply, error) {
	sum, err := p.sumOf(ctx, "/api/v1/nodes", ofKube)
	if apierrors.IsNotFound(err) {
		return p.sumOf(ctx, "/apis/"+rikv1alpha1.SchemeGroupVersion.String()+"/nodes", ofRik)
	}
	return sum, err
}

// nodes is what is read of a page of nodes, Kubernetes' or rik's. Their amounts stay text
// until they are known to be such that one can reckon with them.
type nodes struct {
	Metadata metav1.ListMeta `json:"metadata"`
	Items    []struct {
		Status struct {
			Capacity    map[string]string `json:"capacity"`
			Allocatable map[string]string `json:"allocatable"`
		} `json:"status"`
	} `json:"items"`
}

// sumOf sums up the nodes that a cluster lists below a path. nameOf says what a resource of
// theirs is called here.
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
