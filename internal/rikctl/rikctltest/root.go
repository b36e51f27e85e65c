package rikctltest

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter/loader"
)

// Deployments is the type that these tests split.
var Deployments = loader.Type{GVK: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, Resource: "deployments", Scalable: true}

// Cluster returns a Cluster that is ready and accepts deployments.
func Cluster(name string, labels map[string]string) *workloadv1alpha1.Cluster {
	return &workloadv1alpha1.Cluster{
		TypeMeta:   metav1.TypeMeta{APIVersion: workloadv1alpha1.SchemeGroupVersion.String(), Kind: "Cluster"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels, CreationTimestamp: At(1)},
		Status: workloadv1alpha1.ClusterStatus{
			SyncedResources: []string{"deployments.apps"},
			Conditions:      []metav1.Condition{{Type: "Ready", Status: "True", Reason: "ClusterReady", LastTransitionTime: At(1)}},
		},
	}
}

// Parse parses an object in YAML.
func Parse(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	// Convert numbers to the types that the API server's objects have.
	data, err := json.Marshal(o.Object)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.UnmarshalJSON(data); err != nil {
		t.Fatal(err)
	}
	return o
}

// WebRoot is a root in YAML.
const WebRoot = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop, uid: 1a2b, generation: 3}
spec:
  replicas: 10
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: web, image: "registry.example/web:1", envFrom: [{configMapRef: {name: settings}}, {secretRef: {name: db, optional: true}}]}
`
