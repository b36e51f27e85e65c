package crdpuller

import (
	"cmp"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

// The values of the approval annotation for a protected group: for built-in types of Kubernetes,
// and for other types that do not have the annotation.
const (
	approvedBuiltIn = "https://github.com/kubernetes/kubernetes"
	unapproved      = "unapproved, as pulled from a cluster that serves it"
)

// The paths of the scale subresource of built-in types.
const (
	replicasPath       = ".spec.replicas"
	statusReplicasPath = ".status.replicas"
)

// fromDefinition copies the version that the cluster prefers from a CRD.
func fromDefinition(t servedType, found *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	crd := newCRD(t)
	version := &crd.Spec.Versions[0]
	crd.Spec.Names.ListKind = cmp.Or(found.Spec.Names.ListKind, crd.Spec.Names.ListKind)
	if approval := found.Annotations[apiextensionsv1.KubeAPIApprovedAnnotation]; approval != "" && crd.Annotations != nil {
		crd.Annotations[apiextensionsv1.KubeAPIApprovedAnnotation] = approval
	}
	i := slices.IndexFunc(found.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name == version.Name })
	if i < 0 {
		version.Schema = permissive()
		return crd
	}
	theirs := found.Spec.Versions[i].DeepCopy()
	version.AdditionalPrinterColumns = theirs.AdditionalPrinterColumns
	version.Subresources = theirs.Subresources
	version.Schema = theirs.Schema
	if theirs.Schema == nil || theirs.Schema.OpenAPIV3Schema == nil || apihelpers.IsCRDConditionTrue(found, apiextensionsv1.NonStructuralSchema) {
		version.Schema = permissive()
		return crd
	}
	version.SelectableFields = theirs.SelectableFields
	return crd
}

// fromDefinition copies the preferred version from a CRD, and other versions if the configuration
// asks for them.
func (p *Puller) fromDefinition(t servedType, found *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	crd := fromDefinition(t, found)
	if p.config.EveryVersion {
		p.addVersions(crd, found)
	}
	return crd
}

// permissive returns the schema of a type about which nothing is certain.
func permissive() *apiextensionsv1.CustomResourceValidation {
	p := &props{Type: "object"}
	preserve(p)
	return &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: p}
}

// fromModel returns a CRD for a built-in type. It keeps a reference to the schema.
func fromModel(t servedType, schema *props) *apiextensionsv1.CustomResourceDefinition {
	crd := newCRD(t)
	version := &crd.Spec.Versions[0]
	version.Schema = &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: schema}
	version.AdditionalPrinterColumns = columnsOf(t.kind.GroupKind(), schema)
	var sub apiextensionsv1.CustomResourceSubresources
	if t.status {
		sub.Status = &apiextensionsv1.CustomResourceSubresourceStatus{}
	}
	if t.scale && isInteger(schema, "spec", "replicas") && isInteger(schema, "status", "replicas") {
		sub.Scale = &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: replicasPath, StatusReplicasPath: statusReplicasPath}
		defaultReplicas(schema)
	}
	if sub.Status != nil || sub.Scale != nil {
		version.Subresources = &sub
	}
	return crd
}

func isInteger(p *props, path ...string) bool {
	for _, name := range path {
		child, ok := p.Properties[name]
		if !ok {
			return false
		}
		p = &child
	}
	return p.Type == "integer"
}

// defaultReplicas writes the default of the cluster's own code into the schema. Without the
// field, a scale subresource would have nothing to show.
func defaultReplicas(root *props) {
	spec := root.Properties["spec"]
	replicas := spec.Properties["replicas"]
	if replicas.Default == nil {
		replicas.Default = &apiextensionsv1.JSON{Raw: []byte("1")}
	}
	spec.Properties["replicas"] = replicas
}

// newCRD returns a CRD of the type without a schema.
func newCRD(t servedType) *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: apiextensionsv1.SchemeGroupVersion.String(), Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: t.crdName()},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: t.resource.Group,
			Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: t.resource.Resource, Singular: t.singular, ShortNames: t.shortNames,
				Kind: t.kind.Kind, ListKind: t.kind.Kind + "List", Categories: t.categories,
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: t.resource.Version, Served: true, Storage: true}},
		},
	}
	if t.namespaced {
		crd.Spec.Scope = apiextensionsv1.NamespaceScoped
	}
	if apihelpers.IsProtectedCommunityGroup(t.resource.Group) {
		approval := unapproved
		if scheme.Scheme.Recognizes(t.kind) {
			approval = approvedBuiltIn
		}
		crd.Annotations = map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: approval}
	}
	return crd
}
