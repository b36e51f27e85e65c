package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/testkit/kube"
)

const (
	manyTypes = 200
	// typeFields is the number of fields of a type. Its CRD has some 30 KiB, as is common; the
	// output has the exact size.
	typeFields = 80
	// nativeTypes is the number of other imported types, which the kcp serves itself.
	nativeTypes = 5
)

// BenchmarkNegotiation measures the time from the registration of a cluster with 200 CRDs until
// the kcp serves all of them and the cluster's status reports that they are synced. It creates
// no objects of these types: Kubernetes' own handler delays an object by 2 s if it is created
// within 2 s of its CRD's establishment. Its peer, in the same run, is a bare client that reads
// the 200 CRDs and creates them in a kcp without controllers.
func BenchmarkNegotiation(b *testing.B) {
	begin(b)
	for range b.N {
		measureNegotiation(b, setting(b, "RIK_BENCH_TYPES", manyTypes))
	}
	b.Logf("load at the end: %s", load())
}

func measureNegotiation(b *testing.B, n int) {
	b.Helper()
	below := kube.Start(b, kube.Options{})
	names := make([]string, n)
	group := make([]*apiextensionsv1.CustomResourceDefinition, n)
	for i := range names {
		group[i] = definition(i)
		names[i] = group[i].Name
	}
	size, err := json.Marshal(group[0])
	if err != nil {
		b.Fatal(err)
	}
	makeTypes(b, below.Rest(), group)
	above := startKCP(b, "--push-mode", "--auto-publish-apis", "--split-types", "none", "--resources-to-sync", strings.Join(names, ","))
	used := read(b, above.pid).cpu
	began := time.Now()
	above.register("east", below.Kubeconfig())
	imported := poll(b, 100*time.Millisecond, "all types to be imported", func() bool { return above.count(importType) == n+nativeTypes }).Sub(began)
	all := poll(b, 100*time.Millisecond, "all types to be carried", func() bool { return carries(above.cluster("east"), names...) }).Sub(began)
	p := read(b, above.pid)
	above.stop()

	bare := copyTypes(b, below.Rest(), n)
	b.ReportMetric(all.Seconds(), "rik-s")
	b.ReportMetric(bare.Seconds(), "bare-s")
	b.ReportMetric(milliseconds(p.cpu-used)/float64(n), "cpu-ms/type")
	b.ReportMetric(p.resident, "kcp-rss-MiB")
	b.Logf("%d types of %d KiB: imported after %.1f s, to be carried after %.1f s; a bare client %.1f s", n, len(size)>>10, imported.Seconds(), all.Seconds(), bare.Seconds())
}

var importType = schema.GroupVersionResource{Group: "apiresource.kcp.dev", Version: "v1alpha1", Resource: "apiresourceimports"}

// count returns the number of objects of a type.
func (k *controlPlane) count(resource schema.GroupVersionResource) int {
	k.b.Helper()
	page, err := k.objects.Resource(resource).List(k.b.Context(), metav1.ListOptions{Limit: 1})
	if err != nil {
		k.b.Fatal(err)
	}
	n := len(page.Items)
	if left := page.GetRemainingItemCount(); left != nil {
		n += int(*left)
	}
	return n
}

// copyTypes is the bare client: it reads every CRD and creates it in a separate kcp.
func copyTypes(b *testing.B, from *rest.Config, n int) time.Duration {
	b.Helper()
	to := startKCP(b, "--run-controllers=false")
	defer to.stop()
	began := time.Now()
	found, err := apiextensionsclient.NewForConfigOrDie(from).ApiextensionsV1().CustomResourceDefinitions().List(b.Context(), metav1.ListOptions{})
	if err != nil || len(found.Items) != n {
		b.Fatalf("%d CRDs in the cluster, want %d: %v", len(found.Items), n, err)
	}
	copies := make([]*apiextensionsv1.CustomResourceDefinition, n)
	for i := range found.Items {
		copies[i] = &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: found.Items[i].Name}, Spec: found.Items[i].Spec}
	}
	makeTypes(b, to.config, copies)
	return time.Since(began)
}

// makeTypes creates CRDs, and returns when all are served.
func makeTypes(b *testing.B, config *rest.Config, all []*apiextensionsv1.CustomResourceDefinition) {
	b.Helper()
	config = rest.CopyConfig(config)
	config.QPS = -1
	client := apiextensionsclient.NewForConfigOrDie(config)
	crds := client.ApiextensionsV1().CustomResourceDefinitions()
	requests, ctx := errgroup.WithContext(b.Context())
	requests.SetLimit(2) // as many as negotiation processes at the same time
	for _, crd := range all {
		requests.Go(func() error {
			_, err := crds.Create(ctx, crd, metav1.CreateOptions{})
			return err
		})
	}
	if err := requests.Wait(); err != nil {
		b.Fatal(err)
	}
	poll(b, 100*time.Millisecond, "all CRDs to be served", func() bool {
		served, err := servedTypes(b.Context(), client, all[0].Spec.Group)
		return err == nil && served >= len(all)
	})
}

func servedTypes(ctx context.Context, client *apiextensionsclient.Clientset, group string) (int, error) {
	list := &metav1.APIResourceList{}
	raw, err := client.Discovery().RESTClient().Get().AbsPath("/apis/" + group + "/v1").Do(ctx).Raw()
	if err != nil {
		return 0, err
	}
	err = json.Unmarshal(raw, list)
	served := 0
	for i := range list.APIResources {
		if !strings.Contains(list.APIResources[i].Name, "/") {
			served++
		}
	}
	return served, err
}

// definition returns a CRD with fields of every kind.
func definition(i int) *apiextensionsv1.CustomResourceDefinition {
	plural := fmt.Sprintf("widget%03ds", i)
	kind := fmt.Sprintf("Widget%03d", i)
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + ".bench.rik.dev"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "bench.rik.dev", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Singular: strings.TrimSuffix(plural, "s"), Kind: kind, ListKind: kind + "List"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"spec": {Type: "object", Properties: properties(typeFields, 0)}, "status": {Type: "object", Properties: properties(typeFields/4, 0)},
					},
				}},
			}},
		},
	}
}

// properties returns n fields of all kinds. Objects have nested fields, up to depth.
func properties(n, depth int) map[string]apiextensionsv1.JSONSchemaProps {
	const text = "What this field is for is said in a sentence or two, as long as such sentences are."
	least, longest := float64(0), int64(253)
	all := map[string]apiextensionsv1.JSONSchemaProps{}
	for i := range n {
		p := apiextensionsv1.JSONSchemaProps{Description: text}
		switch i % 6 {
		case 0:
			p.Type, p.MaxLength, p.Pattern = "string", &longest, "^[a-z0-9.-]*$"
		case 1:
			p.Type, p.Format, p.Minimum = "integer", "int32", &least
		case 2:
			p.Type = "boolean"
		case 3:
			p.Type, p.Enum = "string", []apiextensionsv1.JSON{{Raw: []byte(`"Always"`)}, {Raw: []byte(`"Never"`)}}
		case 4:
			p.Type, p.Items = "array", &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{Type: "string"}}
		default:
			p.Type = "object"
			p.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: &apiextensionsv1.JSONSchemaProps{Type: "string"}}
			if depth < 1 {
				p.AdditionalProperties, p.Properties = nil, properties(5, depth+1)
			}
		}
		all[fmt.Sprintf("field%d", i)] = p
	}
	return all
}
