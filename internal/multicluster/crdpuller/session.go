package crdpuller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/multicluster/bounded"
)

// requestTimeout is the timeout of discovery clients.
const requestTimeout = 32 * time.Second

// session is the connection of one Pull to the cluster.
type session struct {
	ctx        context.Context //nolint:containedctx // discovery's methods take none
	discovery  *discovery.DiscoveryClient
	extensions apiextensionsclient.Interface

	documents *documents // set after the first use
}

func (p *Puller) session(ctx context.Context) (*session, error) {
	config := rest.CopyConfig(p.config.Rest)
	client := &http.Client{Transport: bounded.Within(ctx, bounded.Answers(p.transport, maxAnswerBytes)), CheckRedirect: stay, Timeout: cmp.Or(config.Timeout, requestTimeout)}
	// Discovery may need a request for every group.
	config.QPS, config.Burst = cmp.Or(config.QPS, 50), cmp.Or(config.Burst, 300)
	d, err := discovery.NewDiscoveryClientForConfigAndClient(config, client)
	if err != nil {
		return nil, fmt.Errorf("preparing discovery: %w", err)
	}
	extensions, err := apiextensionsclient.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, fmt.Errorf("preparing to read CRDs: %w", err)
	}
	return &session{ctx: ctx, discovery: d, extensions: extensions}, nil
}

// discover reads what is served. It returns an error if the server is not ready, because such a
// server may not know all its types yet.
func (s *session) discover() (catalog, error) {
	if err := s.ready(); err != nil {
		return catalog{}, err
	}
	groups, lists, err := discovery.ServerGroupsAndResources(s.discovery)
	failed, partial := discovery.GroupDiscoveryFailedErrorGroups(err)
	if err != nil && !partial {
		return catalog{}, fmt.Errorf("reading the types that the cluster serves: %w", err)
	}
	if err := whole(groups); err != nil {
		return catalog{}, err
	}
	return preferred(groups, lists, failed), nil
}

func (s *session) ready() error {
	err := s.discovery.RESTClient().Get().AbsPath("/readyz").Do(s.ctx).Error()
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil // without permission for this check, the responses must be used as they are
	}
	return fmt.Errorf("checking whether the cluster is ready: %w", err)
}

// whole rejects a response without one of the two roots of discovery. Every cluster serves the
// core group below one and other groups below the other. The client treats a root that is not
// found as empty.
func whole(groups []*metav1.APIGroup) error {
	first, others := false, false
	for _, g := range groups {
		if len(g.Versions) > 0 {
			first = first || g.Name == ""
			others = others || g.Name != ""
		}
	}
	if !first || !others {
		return errors.New("the cluster serves no types below /api or /apis: check the URL of the server in the kubeconfig, and a proxy in front of the cluster")
	}
	return nil
}
