package rik

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of a rik cluster's own objects.
const GroupName = "rik.dev"

// SchemeGroupVersion is the group and the version of the hub types.
var SchemeGroupVersion = schema.GroupVersion{Group: GroupName, Version: runtime.APIVersionInternal}

var (
	// SchemeBuilder collects the functions that AddToScheme calls.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)
	// AddToScheme registers the hub types in a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

// Resource returns a plural resource name with the group.
func Resource(resource string) schema.GroupResource {
	return SchemeGroupVersion.WithResource(resource).GroupResource()
}

// Kind returns a kind with the group.
func Kind(kind string) schema.GroupKind {
	return SchemeGroupVersion.WithKind(kind).GroupKind()
}

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion,
		&Workload{}, &WorkloadList{},
		&WorkloadRevision{}, &WorkloadRevisionList{},
		&Instance{}, &InstanceList{}, &InstanceLogOptions{}, &InstanceExecOptions{},
		&Node{}, &NodeList{},
		&Tenant{}, &TenantList{},
	)
	return nil
}
