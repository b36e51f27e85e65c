package schema_test

import (
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	"rik.dev/rik/internal/multicluster/schema"
)

// exampleOffer returns the type Widget of a cluster with the given properties of spec.
func exampleOffer(cluster, properties string) schema.Offer {
	raw := `{"type":"object","properties":{"spec":{"type":"object","properties":{` + properties + `}}}}`
	return schema.Offer{Location: cluster, Spec: apiresourcev1alpha1.CommonAPIResourceSpec{
		GroupVersion:    apiresourcev1alpha1.GroupVersion{Group: "example.dev", Version: "v1"},
		Scope:           apiextensionsv1.NamespaceScoped,
		Names:           apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"},
		OpenAPIV3Schema: runtime.RawExtension{Raw: []byte(raw)},
	}}
}

// Meet keeps what both clusters accept, and reports what it leaves out.
func ExampleMeet() {
	east := exampleOffer("east", `"size":{"type":"integer","maximum":10},"color":{"type":"string"}`)
	west := exampleOffer("west", `"size":{"type":"integer"}`)
	agreement, obstacles := schema.Meet(east, west)
	if agreement == nil {
		fmt.Println("no meet:", obstacles)
		return
	}
	fmt.Println(string(agreement.Spec.OpenAPIV3Schema.Raw))
	for _, d := range agreement.Dropped {
		fmt.Printf("%s: %s\n", d.Path, d.Reason)
	}
	// Output:
	// {"type":"object","properties":{"spec":{"type":"object","properties":{"size":{"type":"integer","maximum":10}}}}}
	// .spec.color: there is no such property in west
}

// Compatible lists the places where the offered type rejects documents of the existing type. Each
// obstacle also has such a document (CounterExample).
func ExampleCompatible() {
	existing := exampleOffer("kcp", `"size":{"type":"integer"}`)
	offered := exampleOffer("east", `"size":{"type":"string"}`)
	for _, o := range schema.Compatible(existing, offered) {
		fmt.Printf("%s: %s\n", o.Path, o.Reason)
	}
	// Output:
	// .spec.size: it is an integer (kcp), a string (east)
}
