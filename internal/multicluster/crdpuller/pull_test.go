package crdpuller_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	"rik.dev/rik/internal/multicluster/crdpuller"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/poll"
)

func newPuller(t *testing.T, config *rest.Config) *crdpuller.Puller {
	t.Helper()
	p, err := crdpuller.New(crdpuller.Config{Rest: config, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func pull(t *testing.T, config *rest.Config, names ...string) *crdpuller.Result {
	t.Helper()
	pulled, err := newPuller(t, config).Pull(t.Context(), names...)
	if err != nil {
		t.Fatalf("Pull(%v): %v", names, err)
	}
	return pulled
}

var all struct {
	sync.Mutex
	pulled *crdpuller.Result
}

// pullAll returns all types of the shared cluster, which no test changes. The result is cached,
// because reading them takes seconds under the race detector.
func pullAll(t *testing.T) *crdpuller.Result {
	t.Helper()
	all.Lock()
	defer all.Unlock()
	if all.pulled == nil {
		all.pulled = pull(t, kube.Shared(t).Rest())
	}
	return all.pulled
}

func names(r *crdpuller.Result) []string {
	all := []string{}
	for _, crd := range r.CRDs {
		all = append(all, crd.Name)
	}
	return all
}

// only returns the single CRD of a result.
func only(t *testing.T, r *crdpuller.Result) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	if len(r.CRDs) != 1 || len(r.Problems) != 0 {
		t.Fatalf("pulled %v with problems %v, want one CRD", names(r), r.Problems)
	}
	return r.CRDs[0]
}

// schemaOf returns the schema of the CRD's only version, at a path. [] stands for the items.
func schemaOf(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition, path ...string) apiextensionsv1.JSONSchemaProps {
	t.Helper()
	at := *crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	for _, name := range path {
		if name == "[]" {
			at = *at.Items.Schema
			continue
		}
		next, ok := at.Properties[name]
		if !ok {
			t.Fatalf("%s has no %v", crd.Name, path)
		}
		at = next
	}
	return at
}

// install creates a CRD, waits until it is served, and deletes it after the test.
func install(t *testing.T, c *kube.Cluster, crd *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	client := apiextensionsclient.NewForConfigOrDie(c.Rest()).ApiextensionsV1().CustomResourceDefinitions()
	if _, err := client.Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating the CRD %s: %v", crd.Name, err)
	}
	t.Cleanup(func() {
		if err := client.Delete(context.Background(), crd.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("deleting the CRD %s: %v", crd.Name, err)
		}
	})
	awaitServed(t, c, crd.Name)
}

// awaitServed waits until discovery lists the type.
func awaitServed(t *testing.T, c *kube.Cluster, name string) {
	t.Helper()
	puller := newPuller(t, c.Rest())
	poll.Until(t, kube.Timeout, name+" is served", func(ctx context.Context) error {
		pulled, err := puller.Pull(ctx, name)
		if err == nil && len(pulled.CRDs) == 0 {
			err = fmt.Errorf("not served %v, unknown %v, problems %v", pulled.NotServed, pulled.Unknown, pulled.Problems)
		}
		return err
	})
}

func crdOf(plural, group, kind string, schema apiextensionsv1.JSONSchemaProps) *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: strings.ToLower(kind), Kind: kind, ListKind: kind + "Collection"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
				{Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &schema}},
			},
		},
	}
}

func anyObject() apiextensionsv1.JSONSchemaProps {
	return apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {Type: "string"}}}
}

func TestANameWithoutGroupSelectsTheFirstType(t *testing.T) {
	c := kube.Shared(t)
	install(t, c, crdOf("pods", "metrics.example.dev", "PodMetrics", anyObject()))
	for _, name := range []string{"pods", "pods.core"} {
		crd := only(t, pull(t, c.Rest(), name))
		if crd.Name != "pods.core" || crd.Spec.Group != "" || crd.Spec.Names.Kind != "Pod" {
			t.Errorf("Pull(%q) = %s, kind %s of group %q, want the first types' Pod", name, crd.Name, crd.Spec.Names.Kind, crd.Spec.Group)
		}
	}
	if crd := only(t, pull(t, c.Rest(), "pods.metrics.example.dev")); crd.Spec.Names.Kind != "PodMetrics" {
		t.Errorf("Pull of the other group's pods = kind %s", crd.Spec.Names.Kind)
	}
}

func TestANameWithGroupSelectsItsType(t *testing.T) {
	crd := only(t, pull(t, kube.Shared(t).Rest(), "ingresses.networking.k8s.io"))
	if crd.Name != "ingresses.networking.k8s.io" || crd.Spec.Versions[0].Name != "v1" || crd.Spec.Scope != apiextensionsv1.NamespaceScoped {
		t.Errorf("pulled %s %s, scope %s", crd.Name, crd.Spec.Versions[0].Name, crd.Spec.Scope)
	}
	if got, want := crd.Spec.Names, (apiextensionsv1.CustomResourceDefinitionNames{
		Plural: "ingresses", Singular: "ingress", ShortNames: []string{"ing"}, Kind: "Ingress", ListKind: "IngressList",
	}); !cmp.Equal(got, want) {
		t.Errorf("names differ from discovery's: %s", cmp.Diff(want, got))
	}
	if crd.Annotations[apiextensionsv1.KubeAPIApprovedAnnotation] == "" {
		t.Error("a type of a protected group has no approval: no server will take the CRD")
	}
}

func TestAnUnknownNameIsLeftOut(t *testing.T) {
	pulled := pull(t, kube.Shared(t).Rest(), "nothing.example.dev", "configmaps", "pods.apps")
	if got, want := names(pulled), []string{"configmaps.core"}; !slices.Equal(got, want) || len(pulled.Problems) > 0 {
		t.Errorf("pulled %v with problems %v, want %v", got, pulled.Problems, want)
	}
	if want := []string{"nothing.example.dev", "pods.apps"}; !slices.Equal(pulled.NotServed, want) {
		t.Errorf("NotServed = %v, want %v", pulled.NotServed, want)
	}
}

func TestACRDPrecedesOpenAPI(t *testing.T) {
	c := kube.Shared(t)
	pattern := "^[a-z]+$"
	want := crdOf("widgets", "p4.example.dev", "Widget", apiextensionsv1.JSONSchemaProps{
		Type: "object",
		Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {
			Type: "object", Required: []string{"name"},
			Properties:   map[string]apiextensionsv1.JSONSchemaProps{"name": {Type: "string", Pattern: pattern}, "size": {Type: "integer"}},
			XValidations: apiextensionsv1.ValidationRules{{Rule: "has(self.size)", Message: "no size"}},
		}},
	})
	columns := []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Size", Type: "integer", JSONPath: ".spec.size"}}
	want.Spec.Versions[0].AdditionalPrinterColumns = columns
	// Add an older version, which the cluster does not prefer.
	older := want.Spec.Versions[0]
	older.Name, older.Storage, older.AdditionalPrinterColumns = "v1beta1", false, nil
	want.Spec.Versions = append(want.Spec.Versions, older)
	install(t, c, want)
	got := only(t, pull(t, c.Rest(), "widgets.p4.example.dev"))
	if len(got.Spec.Versions) != 1 || got.Spec.Versions[0].Name != "v1" || !got.Spec.Versions[0].Storage {
		t.Fatalf("versions %v, want the preferred one", got.Spec.Versions)
	}
	if diff := cmp.Diff(want.Spec.Versions[0].Schema, got.Spec.Versions[0].Schema); diff != "" {
		t.Errorf("schema differs from the CRD's: %s", diff)
	}
	if diff := cmp.Diff(columns, got.Spec.Versions[0].AdditionalPrinterColumns); diff != "" {
		t.Errorf("columns differ from the CRD's: %s", diff)
	}
	if got.Spec.Names.ListKind != "WidgetCollection" {
		t.Errorf("list kind %q, want the CRD's", got.Spec.Names.ListKind)
	}
}

// TestEveryVersion tests that versions which differ only by optional fields are pulled in
// addition to the preferred one. For other versions there is a reason.
func TestEveryVersion(t *testing.T) {
	c := kube.Shared(t)
	of := func(fields ...string) apiextensionsv1.JSONSchemaProps {
		properties := map[string]apiextensionsv1.JSONSchemaProps{}
		for _, name := range fields {
			properties[name] = apiextensionsv1.JSONSchemaProps{Type: "string"}
		}
		return apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {Type: "object", Properties: properties}}}
	}
	want := crdOf("widgets", "every.example.dev", "Widget", of("size", "more"))
	for name, schema := range map[string]apiextensionsv1.JSONSchemaProps{"v1beta1": of("size"), "v1alpha1": of("capacity"), "v1alpha2": of("size")} {
		older := *want.Spec.Versions[0].DeepCopy()
		older.Name, older.Storage, older.Served, older.Schema.OpenAPIV3Schema = name, false, name != "v1alpha2", &schema
		want.Spec.Versions = append(want.Spec.Versions, older)
	}
	install(t, c, want)
	puller, err := crdpuller.New(crdpuller.Config{Rest: c.Rest(), EveryVersion: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time from the cache
		pulled, err := puller.Pull(t.Context(), "widgets.every.example.dev")
		if err != nil {
			t.Fatal(err)
		}
		got := only(t, pulled)
		if len(got.Spec.Versions) != 2 || got.Spec.Versions[0].Name != "v1" || got.Spec.Versions[1].Name != "v1beta1" || !got.Spec.Versions[1].Served || got.Spec.Versions[1].Storage {
			t.Errorf("versions %+v, want v1 and v1beta1", got.Spec.Versions)
		}
		if left := got.Annotations[apiresourcev1alpha1.VersionsAnnotation]; left != "v1alpha1: .spec.capacity: there is no such property in v1" {
			t.Errorf("the annotation says %q", left)
		}
	}
}

// TestANonStructuralSchemaIsPermissive stores a CRD that servers before 1.22 accepted. No client
// can create one any more, but upgraded servers still have them.
func TestANonStructuralSchemaIsPermissive(t *testing.T) {
	c := kube.Shared(t)
	crd := crdOf("relics", "p5.example.dev", "Relic", apiextensionsv1.JSONSchemaProps{
		Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {Description: "of no type"}},
	})
	crd.Spec.PreserveUnknownFields = true
	crd.UID, crd.CreationTimestamp, crd.Generation = "5", metav1.Now(), 1
	crd.TypeMeta = metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"}
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter}
	crd.Status.StoredVersions = []string{"v1"}
	raw, err := json.Marshal(crd)
	if err != nil {
		t.Fatal(err)
	}
	store(t, c, "/registry/apiextensions.k8s.io/customresourcedefinitions/"+crd.Name, raw)
	client := apiextensionsclient.NewForConfigOrDie(c.Rest()).ApiextensionsV1().CustomResourceDefinitions()
	t.Cleanup(func() {
		if err := client.Delete(context.Background(), crd.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	poll.Until(t, kube.Timeout, "the server finds the schema not structural", func(ctx context.Context) error {
		found, err := client.Get(ctx, crd.Name, metav1.GetOptions{})
		if err == nil && !apihelpers.IsCRDConditionTrue(found, apiextensionsv1.NonStructuralSchema) {
			err = fmt.Errorf("conditions %v", found.Status.Conditions)
		}
		return err
	})
	awaitServed(t, c, crd.Name)
	yes := true
	want := &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &yes}
	if diff := cmp.Diff(want, only(t, pull(t, c.Rest(), crd.Name)).Spec.Versions[0].Schema.OpenAPIV3Schema); diff != "" {
		t.Errorf("schema: %s", diff)
	}
}

// store writes to the cluster's etcd.
func store(t *testing.T, c *kube.Cluster, key string, value []byte) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{c.Datastore()}, DialTimeout: time.Minute, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Put(t.Context(), key, string(value)); err != nil {
		t.Fatal(err)
	}
}

func TestARecursiveTypeIsLeftOutWithAMessage(t *testing.T) {
	pulled := pull(t, kube.Shared(t).Rest(), "customresourcedefinitions.apiextensions.k8s.io", "secrets")
	if got, want := names(pulled), []string{"secrets.core"}; !slices.Equal(got, want) {
		t.Errorf("pulled %v, want %v", got, want)
	}
	if len(pulled.Problems) != 1 || !errors.Is(pulled.Problems[0].Err, crdpuller.ErrRecursive) || !strings.Contains(pulled.Problems[0].String(), ".openAPIV3Schema.") {
		t.Errorf("problems %v, want one that says where the type contains itself", pulled.Problems)
	}
}

func TestKeysOfListsArePulled(t *testing.T) {
	pods := only(t, pull(t, kube.Shared(t).Rest(), "pods"))
	ports := schemaOf(t, pods, "spec", "containers", "[]", "ports")
	if *ports.XListType != "map" || !slices.Equal(ports.XListMapKeys, []string{"containerPort", "protocol"}) {
		t.Errorf("ports are a %s by %v", *ports.XListType, ports.XListMapKeys)
	}
	item := ports.Items.Schema
	if !slices.Contains(item.Required, "containerPort") || string(item.Properties["protocol"].Default.Raw) != `"TCP"` {
		t.Errorf("ports require %v and default protocol to %v, want the port required and TCP", item.Required, item.Properties["protocol"].Default)
	}
	// A key that may be omitted gets the default "", which also stays.
	secrets := schemaOf(t, pods, "spec", "imagePullSecrets")
	if name := secrets.Items.Schema.Properties["name"]; *secrets.XListType != "map" || name.Default == nil || string(name.Default.Raw) != `""` {
		t.Errorf("imagePullSecrets are a %s, with the default %v of name", *secrets.XListType, name.Default)
	}
	// A required name has no default. With a default, it could be omitted.
	if name := schemaOf(t, pods, "spec", "containers", "[]", "name"); name.Default != nil {
		t.Errorf("a container's name defaults to %s", name.Default.Raw)
	}
	if command := schemaOf(t, pods, "spec", "containers", "[]", "command"); *command.XListType != "atomic" {
		t.Errorf("a command is a %s list, want atomic", *command.XListType)
	}
}

func TestSubresourcesArePulled(t *testing.T) {
	status, scale := &apiextensionsv1.CustomResourceSubresourceStatus{}, &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.replicas"}
	for name, want := range map[string]*apiextensionsv1.CustomResourceSubresources{
		"configmaps":                      {},
		"services":                        {Status: status},
		"jobs.batch":                      {Status: status},
		"deployments.apps":                {Status: status, Scale: scale},
		"statefulsets.apps":               {Status: status, Scale: scale},
		"replicationcontrollers":          {Status: status, Scale: scale},
		"persistentvolumeclaims":          {Status: status},
		"roles.rbac.authorization.k8s.io": {},
	} {
		crd := only(t, pull(t, kube.Shared(t).Rest(), name))
		got := crd.Spec.Versions[0].Subresources
		if got == nil {
			got = &apiextensionsv1.CustomResourceSubresources{}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if want.Scale != nil {
			if replicas := schemaOf(t, crd, "spec", "replicas"); replicas.Default == nil || string(replicas.Default.Raw) != "1" {
				t.Errorf("%s: replicas default to %v, want 1", name, replicas.Default)
			}
		}
	}
}

// TestForbiddenCRDsAreReported pulls as a user with access to discovery only.
func TestForbiddenCRDsAreReported(t *testing.T) {
	c := kube.Shared(t)
	install(t, c, crdOf("hidden", "p9.example.dev", "Hidden", anyObject()))
	config := c.Rest()
	config.Impersonate = rest.ImpersonationConfig{UserName: "nobody-special"}
	for _, asked := range [][]string{nil, {"deployments.apps", "hidden.p9.example.dev"}} {
		pulled := pull(t, config, asked...)
		if !slices.Contains(names(pulled), "deployments.apps") {
			t.Errorf("Pull(%v) = %v, want what is built in", asked, names(pulled))
		}
		i := slices.IndexFunc(pulled.Problems, func(p crdpuller.Problem) bool { return p.Resource.Resource == "hidden" })
		if i < 0 || !apierrors.IsForbidden(pulled.Problems[i].Err) {
			t.Errorf("Pull(%v) has the problems %v, want that the CRD is forbidden", asked, pulled.Problems)
		}
	}
}

// TestTypeDisappears tests the difference between a removed type and one whose group cannot be
// read.
func TestTypeDisappears(t *testing.T) {
	c := kube.Shared(t)
	crd := crdOf("mayflies", "p10.example.dev", "Mayfly", anyObject())
	install(t, c, crd)
	brokenAPIService(t, c, "v1", "silent.example.dev")
	p := newPuller(t, c.Rest())
	silent := schema.GroupVersion{Group: "silent.example.dev", Version: "v1"}
	poll.Until(t, kube.Timeout, "the silent group is unknown", func(ctx context.Context) error {
		pulled, err := p.Pull(ctx, crd.Name, "things.silent.example.dev")
		if err == nil && (!slices.Contains(pulled.Unknown, silent) || len(pulled.NotServed) > 0 || len(pulled.CRDs) != 1) {
			err = fmt.Errorf("unknown %v, not served %v, pulled %v", pulled.Unknown, pulled.NotServed, names(pulled))
		}
		return err
	})
	client := apiextensionsclient.NewForConfigOrDie(c.Rest()).ApiextensionsV1().CustomResourceDefinitions()
	if err := client.Delete(t.Context(), crd.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, kube.Timeout, "the type is gone", func(ctx context.Context) error {
		pulled, err := p.Pull(ctx, crd.Name)
		gone := schema.GroupVersion{Group: "p10.example.dev", Version: "v1"}
		if err == nil && (!slices.Equal(pulled.NotServed, []string{crd.Name}) || len(pulled.CRDs)+len(pulled.Problems) > 0 || slices.Contains(pulled.Unknown, gone)) {
			err = fmt.Errorf("not served %v, pulled %v, problems %v, unknown %v", pulled.NotServed, names(pulled), pulled.Problems, pulled.Unknown)
		}
		return err
	})
}

// brokenAPIService registers a group whose server does not exist.
func brokenAPIService(t *testing.T, c *kube.Cluster, version, group string) {
	t.Helper()
	client, err := dynamic.NewForConfig(c.Rest())
	if err != nil {
		t.Fatal(err)
	}
	services := client.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"})
	name := version + "." + group
	_, err = services.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"group": group, "version": version, "groupPriorityMinimum": int64(100), "versionPriority": int64(1000), "insecureSkipTLSVerify": true,
			"service": map[string]any{"namespace": "default", "name": "not-there"},
		},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := services.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}
