package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/cluster"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/poll"
)

// hostileServer answers like a malicious or broken API server. It serves ConfigMaps, and has none.
type hostileServer struct {
	version string
	// groups is the number of API groups that cannot be read.
	groups int
	// nodes are the reported capacities of its nodes.
	nodes []map[string]string
	// silent is true if discovery is not answered any more.
	silent atomic.Bool
	asked  atomic.Int32
}

// start serves it, and returns a kubeconfig for it.
func (i *hostileServer) start(t *testing.T) string {
	t.Helper()
	end := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		discovery := r.URL.Path == "/api" || r.URL.Path == "/apis" || r.URL.Path == "/api/v1"
		if discovery && i.silent.Load() {
			i.asked.Add(1)
			select {
			case <-end:
			case <-r.Context().Done():
			}
			return
		}
		w.Header().Set("Content-Type", "application/json")
		answer := i.answer(r.URL.Path)
		if failure, ok := answer.(*metav1.Status); ok {
			w.WriteHeader(int(failure.Code))
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(end) })
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"it","contexts":[{"name":"it","context":{"cluster":"it","user":"it"}}],
		"clusters":[{"name":"it","cluster":{"server":%q}}],"users":[{"name":"it","user":{"token":"of-an-impostor"}}]}`, server.URL)
}

func (i *hostileServer) answer(path string) any {
	switch path {
	case "/readyz":
		return "ok"
	case "/version":
		return map[string]string{"gitVersion": i.version}
	case "/api":
		return map[string]any{"kind": "APIVersions", "versions": []string{"v1"}}
	case "/apis":
		list := metav1.APIGroupList{Groups: []metav1.APIGroup{groupOf("apps/v1")}}
		for n := range i.groups {
			list.Groups = append(list.Groups, groupOf(fmt.Sprintf("group-%05d.with-a-long-name.example/v1", n)))
		}
		return list
	case "/apis/apps/v1":
		return metav1.APIResourceList{GroupVersion: "apps/v1"}
	case "/api/v1":
		return metav1.APIResourceList{GroupVersion: "v1", APIResources: []metav1.APIResource{{
			Name: "configmaps", Kind: "ConfigMap", Namespaced: true, Verbs: []string{"get", "list", "watch", "create", "patch", "delete"},
		}}}
	case "/api/v1/namespaces/kube-system":
		return &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "impostor"}}
	case "/api/v1/nodes":
		var items []any
		for _, capacity := range i.nodes {
			items = append(items, map[string]any{"status": map[string]any{"capacity": capacity}})
		}
		return map[string]any{"kind": "NodeList", "apiVersion": "v1", "items": items}
	}
	if strings.HasPrefix(path, "/apis/group-") {
		return &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonServiceUnavailable, Code: http.StatusServiceUnavailable}
	}
	return &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Message: "there is nothing here"}
}

func groupOf(version string) metav1.APIGroup {
	name, _, _ := strings.Cut(version, "/")
	v := metav1.GroupVersionForDiscovery{GroupVersion: version, Version: "v1"}
	return metav1.APIGroup{Name: name, Versions: []metav1.GroupVersionForDiscovery{v}, PreferredVersion: v}
}

func inline(name, kubeconfig string) *workloadv1alpha1.Cluster {
	return &workloadv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: workloadv1alpha1.ClusterSpec{KubeConfig: kubeconfig}}
}

// Clusters that accept connections but do not answer block neither their own removal nor that of
// others.
func TestSilentClustersAreReleased(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *cluster.Config) { c.Mode = workloadv1alpha1.SyncPush })
	// More Clusters than concurrent passes.
	const many = 6
	var registered []*workloadv1alpha1.Cluster
	var silenced []*hostileServer
	for n := range many {
		i := &hostileServer{version: "v1"}
		c := inline(fmt.Sprintf("silent%d", n), i.start(t))
		s.create(t, c)
		registered, silenced = append(registered, c), append(silenced, i)
		s.awaitReady(t, c.Name, metav1.ConditionTrue, workloadv1alpha1.ReasonClusterReady)
	}
	for _, i := range silenced {
		i.silent.Store(true)
	}
	for _, i := range silenced {
		poll.Until(t, kube.Timeout, "the importer and the syncer both wait for discovery", func(context.Context) error {
			if n := i.asked.Load(); n < 2 {
				return fmt.Errorf("%d requests wait", n)
			}
			return nil
		})
	}
	for _, c := range registered {
		if err := s.upstream.Delete(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range registered {
		s.gone(t, c)
	}
}

// A cluster that reports too much data still has a status.
func TestStatusOfAClusterThatReportsTooMuch(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *cluster.Config) { c.Mode = workloadv1alpha1.SyncPush })
	i := &hostileServer{version: strings.Repeat("v", 4<<20), groups: 1500, nodes: []map[string]string{{"cpu": "2", "memory": "1e999999999"}}}
	for n := range 40 {
		made := map[string]string{"cpu": "1e-999999999", "memory": "1Gi"}
		for k := range 1000 {
			made[fmt.Sprintf("example.com/r%d-%d", n, k)] = "1"
		}
		i.nodes = append(i.nodes, made)
	}
	s.create(t, inline("talkative", i.start(t)))
	c := s.awaitReady(t, "talkative", metav1.ConditionTrue, workloadv1alpha1.ReasonClusterReady)
	if cpu := c.Status.Capacity[corev1.ResourceCPU]; cpu.Cmp(resource.MustParse("2")) != 0 {
		t.Errorf("CPU = %v, want that of the one node that makes sense", cpu.String())
	}
	if len(c.Status.Capacity) > 100 || len(c.Status.Version) > 1000 {
		t.Errorf("%d resources, %d bytes of version", len(c.Status.Capacity), len(c.Status.Version))
	}
	poll.Until(t, kube.Timeout, "the types that are not imported are named", func(ctx context.Context) error {
		now, err := s.get(ctx, "talkative")
		if err != nil {
			return err
		}
		for _, condition := range now.Status.Conditions {
			if condition.Type == workloadv1alpha1.ConditionAPIImporterReady && strings.Contains(condition.Message, " more") {
				return nil
			}
		}
		return errors.New("there is no such message")
	})
}
