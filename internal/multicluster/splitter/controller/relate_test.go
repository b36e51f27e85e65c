package controller_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter/controller"
	"rik.dev/rik/internal/testkit/kcptest"
)

var (
	autoscalers  = schema.GroupVersionResource{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"}
	budgets      = schema.GroupVersionResource{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"}
	issuers      = schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "issuers"}
	certificates = schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "certificates"}
	monitors     = schema.GroupVersionResource{Group: "monitoring.coreos.com", Version: "v1", Resource: "servicemonitors"}
	buckets      = schema.GroupVersionResource{Group: "storage.example.org", Version: "v1", Resource: "buckets"}
	ingresses    = schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"}
	routes       = schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "httproutes"}
)

// relatedKinds are types whose objects refer to other objects.
var relatedKinds = map[schema.GroupVersionResource]string{
	autoscalers: "HorizontalPodAutoscaler", budgets: "PodDisruptionBudget", issuers: "Issuer", certificates: "Certificate", routes: "HTTPRoute",
	monitors: "ServiceMonitor", buckets: "Bucket",
	ingresses: "Ingress",
}

// relatedSite returns a site with types that refer to Deployments, to Services and to each other.
func relatedSite(t *testing.T, names ...string) *site {
	t.Helper()
	s := apart(t, names...)
	types := []string{s.resource.GroupResource().String()}
	synced := []any{s.resource.GroupResource().String(), "configmaps", "secrets", "serviceaccounts", "services", "persistentvolumeclaims"}
	for resource, kind := range relatedKinds {
		crd := &unstructured.Unstructured{}
		text := strings.NewReplacer("jobs", resource.Resource, "singular: job", "singular: "+strings.ToLower(kind), "JobList", kind+"List", "kind: Job", "kind: "+kind,
			"name: v1", "name: "+resource.Version, "batch", resource.Group).Replace(jobsCRD)
		if err := yaml.Unmarshal([]byte(text), &crd.Object); err != nil {
			t.Fatal(err)
		}
		if _, err := s.objects.Resource(crds).Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			// the server stops anyway
			_ = s.objects.Resource(crds).Delete(context.Background(), crd.GetName(), metav1.DeleteOptions{})
		})
		if resource != ingresses {
			types = append(types, resource.GroupResource().String())
		}
		synced = append(synced, resource.GroupResource().String())
	}
	for _, name := range names {
		s.merge(clusters, "", s.cluster(name), map[string]any{"status": map[string]any{"syncedResources": synced}}, "status")
	}
	end, err := run(kcptest.LoopbackConfig(s.server), controller.Config{Types: types})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	return s
}

// make creates an object of one of the relatedKinds.
func (s *site) make(resource schema.GroupVersionResource, name, spec string) {
	s.Helper()
	o := object(resource, relatedKinds[resource], s.namespace, name)
	fields := map[string]any{}
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(spec, "APPS", s.resource.Group)), &fields); err != nil {
		s.Fatal(err)
	}
	o.Object["spec"] = fields
	s.create(resource, o)
}

// leads waits until the leaves of a root have the wanted values at some paths, as east=x west=y.
func (s *site) leads(resource schema.GroupVersionResource, root, path, want string) {
	s.Helper()
	deployments := s.resource
	s.eventually(fmt.Sprintf("%s of the leaves of %s is %s", path, root, want), func(ctx context.Context) error {
		s.resource = resource
		got, err := s.leaves(ctx, root, func(leaf *unstructured.Unstructured) any {
			var values []string
			for _, field := range strings.Split(path, " ") {
				value, _, _ := unstructured.NestedFieldNoCopy(leaf.Object, strings.Split(field, ".")...)
				values = append(values, fmt.Sprint(value))
			}
			return strings.Join(values, ",")
		})
		s.resource = deployments
		if got = strings.ReplaceAll(got, s.namespace+"-", ""); err == nil && got != want {
			err = fmt.Errorf("it is %q", got)
		}
		return err
	})
}

// called waits until the leaf of a root has the wanted name in its cluster.
func (s *site) called(resource schema.GroupVersionResource, root, cluster, want string) {
	s.Helper()
	s.eventually("the leaf of "+root+" is called "+want+" in "+cluster, func(ctx context.Context) error {
		leaf, err := s.objects.Resource(resource).Namespace(s.namespace).Get(ctx, s.leaf(root, cluster), metav1.GetOptions{})
		if err == nil && workloadv1alpha1.NameInCluster(leaf) != want {
			err = fmt.Errorf("it is called %s", workloadv1alpha1.NameInCluster(leaf))
		}
		return err
	})
}

// TestReferencesStayTogether tests that a root which refers to a divided object has a leaf in
// each of its clusters, and that each leaf refers to the leaf there. A root that refers to an
// undivided object goes to the cluster of that object.
func TestReferencesStayTogether(t *testing.T) {
	t.Parallel()
	s := relatedSite(t, "east", "west")
	s.make(autoscalers, "web", `{scaleTargetRef: {apiVersion: APPS/v1, kind: Deployment, name: web}, minReplicas: 2, maxReplicas: 20}`)
	s.make(budgets, "web", `{selector: {matchLabels: {app: web}}, minAvailable: 4}`)
	s.deploy("web", 10, nil)
	s.until("web", "east=5 west=5")
	s.leads(autoscalers, "web", "spec.scaleTargetRef.name spec.minReplicas spec.maxReplicas", "east=web--east,1,10 west=web--west,1,10")
	s.leads(budgets, "web", "spec.minAvailable", "east=2 west=2")

	// The workload moves, and the roots that refer to it follow.
	s.hint("web", map[string]any{workloadv1alpha1.HintPrefix + "not-clusters": workloadv1alpha1.ClusterLabel + "=" + s.cluster("east")})
	s.until("web", "west=5") // its share is 10, and the autoscaler there sets how many run
	s.leads(autoscalers, "web", "spec.scaleTargetRef.name spec.maxReplicas", "west=web--west,20")
	s.leads(budgets, "web", "spec.minAvailable", "west=4")

	// An undivided root, and a root that refers to it.
	s.make(issuers, "ca", `{selfSigned: {}}`)
	s.leads(issuers, "ca", "metadata.name", "east=ca--east")
	s.make(certificates, "web", `{secretName: web-tls, issuerRef: {name: ca}}`)
	s.leads(certificates, "web", "spec.issuerRef.name spec.secretName", "east=ca,web-tls")
	s.called(issuers, "ca", "east", "ca")
	s.called(autoscalers, "web", "west", "web")

	// A route goes to the clusters of its Services.
	service := object(core.WithResource("services"), "Service", s.namespace, "web")
	service.Object["spec"] = map[string]any{"selector": map[string]any{"app": "web"}, "ports": []any{map[string]any{"port": int64(80)}}}
	s.create(core.WithResource("services"), service)
	s.make(routes, "web", `{rules: [{backendRefs: [{name: web, port: 80}]}]}`)
	s.leads(routes, "web", "metadata.name", "west=web--west")
	s.hint("web", map[string]any{workloadv1alpha1.HintPrefix + "not-clusters": nil})
	s.until("web", "east=5 west=5")
	s.leads(routes, "web", "metadata.name", "east=web--east west=web--west")
	s.leads(autoscalers, "web", "spec.scaleTargetRef.name spec.maxReplicas", "east=web--east,10 west=web--west,10")

	// A monitor goes to the clusters of the Services that it selects, even after the selection
	// changes.
	s.make(monitors, "web", `{selector: {matchLabels: {tier: front}}, endpoints: [{port: http}]}`)
	s.leads(monitors, "web", "metadata.name", "east=web--east")
	s.merge(core.WithResource("services"), s.namespace, "web", map[string]any{"metadata": map[string]any{"labels": map[string]any{"tier": "front"}}})
	s.leads(monitors, "web", "metadata.name", "east=web--east west=web--west")

	// A root that makes a Secret goes where the Secret is needed. The roots to which it refers go
	// there too.
	s.make(certificates, "api", `{secretName: api-tls, issuerRef: {name: ca}}`)
	s.leads(certificates, "api", "spec.issuerRef.name", "east=ca")
	pod := template("web", "v1")
	pod["spec"].(map[string]any)["volumes"] = []any{map[string]any{"name": "tls", "secret": map[string]any{"secretName": "api-tls"}}}
	s.merge(s.resource, s.namespace, "web", map[string]any{"spec": map[string]any{"template": pod}})
	s.leads(certificates, "api", "spec.issuerRef.name spec.secretName", "east=ca,api-tls west=ca,api-tls")
	s.leads(issuers, "ca", "metadata.name", "east=ca--east west=ca--west")

	// A type without built-in rules declares in an annotation what it makes.
	s.make(buckets, "logs", `{region: north}`)
	s.leads(buckets, "logs", "spec.region", "east=north")
	s.merge(buckets, s.namespace, "logs", map[string]any{"metadata": map[string]any{"annotations": map[string]any{workloadv1alpha1.ProducesAnnotation: "Secret={metadata.name}-login"}}})
	pod["spec"].(map[string]any)["volumes"] = []any{map[string]any{"name": "login", "secret": map[string]any{"secretName": "logs-login"}}}
	s.merge(s.resource, s.namespace, "web", map[string]any{"spec": map[string]any{"template": pod}})
	s.leads(buckets, "logs", "spec.region", "east=north west=north")
	s.leads(certificates, "api", "spec.issuerRef.name", "east=ca")

	// An Ingress goes to the clusters of its backend, and uses the name that the backend has
	// there.
	s.make(ingresses, "logs", `{defaultBackend: {resource: {apiGroup: storage.example.org, kind: Bucket, name: logs}}}`)
	s.sentAs(ingresses, "logs", "east,west")
	s.called(buckets, "logs", "west", "logs")
	if err := s.objects.Resource(buckets).Namespace(s.namespace).Delete(t.Context(), "logs", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.sentAs(ingresses, "logs", "")

	// A workload with an autoscaler yields its replicas without an annotation. It stops yielding
	// them when the root says so, and when the autoscaler is deleted.
	s.yields("web", "east", "spec.replicas")
	s.yields("web", "west", "spec.replicas")
	s.merge(s.resource, s.namespace, "web", map[string]any{"metadata": map[string]any{"annotations": map[string]any{workloadv1alpha1.YieldAnnotation: workloadv1alpha1.YieldNone}}})
	s.yields("web", "west", workloadv1alpha1.YieldNone)
	s.merge(s.resource, s.namespace, "web", map[string]any{"metadata": map[string]any{"annotations": map[string]any{workloadv1alpha1.YieldAnnotation: nil}}})
	s.yields("web", "west", "spec.replicas")
	s.merge(s.resource, s.namespace, "web", map[string]any{"spec": map[string]any{"replicas": 0}})
	s.until("web", "east=0 west=0")
	s.yields("web", "east", "")
	s.merge(s.resource, s.namespace, "web", map[string]any{"spec": map[string]any{"replicas": 10}})
	s.yields("web", "east", "spec.replicas")
	s.yields("web", "west", "spec.replicas")
	if err := s.objects.Resource(autoscalers).Namespace(s.namespace).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.yields("web", "east", "")
	s.yields("web", "west", "")
	s.until("web", "east=5 west=5")
}

// yields waits until the leaf of a Deployment yields the wanted fields in its cluster.
func (s *site) yields(root, cluster, want string) {
	s.Helper()
	s.eventually("the leaf of "+root+" in "+cluster+" yields "+want, func(ctx context.Context) error {
		leaf, err := s.objects.Resource(s.resource).Namespace(s.namespace).Get(ctx, s.leaf(root, cluster), metav1.GetOptions{})
		if err == nil && leaf.GetAnnotations()[workloadv1alpha1.YieldAnnotation] != want {
			err = fmt.Errorf("it yields %q", leaf.GetAnnotations()[workloadv1alpha1.YieldAnnotation])
		}
		return err
	})
}
