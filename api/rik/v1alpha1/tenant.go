package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Tenant owns a namespace of its own name and says who may do what in it.
type Tenant struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`
	// +optional
	Spec TenantSpec `json:"spec,omitempty" protobuf:"bytes,2,opt,name=spec"`
	// +optional
	Status TenantStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// TenantList is a list of Tenants.
type TenantList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`
	Items           []Tenant `json:"items" protobuf:"bytes,2,rep,name=items"`
}

// TenantSpec says who may do what.
type TenantSpec struct {
	// users of the tenant and their rights in its namespace.
	// +optional
	// +listType=map
	// +listMapKey=name
	Users []TenantUser `json:"users,omitempty" protobuf:"bytes,1,rep,name=users"`
	// value is the free text that a v0 client stored.
	// +optional
	Value string `json:"value,omitempty" protobuf:"bytes,2,opt,name=value"`
}

// TenantUser is a user and what they may do.
type TenantUser struct {
	// name as the authenticator gives it.
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// verbs such as get, list, create; "*" for all. Defaults to all.
	// +optional
	// +listType=atomic
	Verbs []string `json:"verbs,omitempty" protobuf:"bytes,2,rep,name=verbs"`
	// resources such as workloads, instances; "*" for all. Defaults to all.
	// +optional
	// +listType=atomic
	Resources []string `json:"resources,omitempty" protobuf:"bytes,3,rep,name=resources"`
}

// TenantStatus is what was last seen of a tenant.
type TenantStatus struct {
	// namespace made for it.
	// +optional
	Namespace string `json:"namespace,omitempty" protobuf:"bytes,1,opt,name=namespace"`
	// instances that exist in it.
	// +optional
	Instances int32 `json:"instances,omitempty" protobuf:"varint,2,opt,name=instances"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty" protobuf:"bytes,3,rep,name=conditions"`
}
