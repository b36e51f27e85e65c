package crdpuller

import apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

// quantityPattern is the pattern of k8s.io/apimachinery/pkg/api/resource, as controller-gen
// writes it.
const quantityPattern = `^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$`

// wellKnown returns the schema of a type whose JSON differs from its model, or for which CRDs
// have their own keywords. It returns nil for all other types.
func wellKnown(model string) *props {
	switch model {
	case "io.k8s.apimachinery.pkg.apis.meta.v1.Time", "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime":
		return &props{Type: "string", Format: "date-time"}
	case "io.k8s.apimachinery.pkg.api.resource.Quantity":
		return &props{
			XIntOrString: true, Pattern: quantityPattern,
			AnyOf: []apiextensionsv1.JSONSchemaProps{{Type: "integer"}, {Type: "string"}},
		}
	case "io.k8s.apimachinery.pkg.util.intstr.IntOrString":
		return &props{XIntOrString: true, AnyOf: []apiextensionsv1.JSONSchemaProps{{Type: "integer"}, {Type: "string"}}}
	case "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", "io.k8s.apimachinery.pkg.runtime.RawExtension",
		"io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1":
		p := &props{Type: "object"}
		preserve(p)
		return p
	case "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON", "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1beta1.JSON":
		p := &props{}
		preserve(p)
		return p
	default:
		return nil
	}
}
