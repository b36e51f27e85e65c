package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// Tenant owns a namespace with its name, and gives users rights in it.
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

// TenantSpec is the desired state of a Tenant.
type TenantSpec struct {
	// users are the tenant's users with their rights in its namespace.
	// +optional
	// +listType=map
	// +listMapKey=name
	Users []TenantUser `json:"users,omitempty" protobuf:"bytes,1,rep,name=users"`
	// value is the free text that a v0 client stored.
	// +optional
	Value string `json:"value,omitempty" protobuf:"bytes,2,opt,name=value"`
}

// TenantUser is a user with rights.
type TenantUser struct {
	// name is the user's name, as the authenticator returns it.
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// verbs are verbs such as get, list and create. "*" means all verbs. Defaults to all.
	// +optional
	// +listType=atomic
	Verbs []string `json:"verbs,omitempty" protobuf:"bytes,2,rep,name=verbs"`
	// resources are types such as workloads and instances. "*" means all types. Defaults to all.
	// +optional
	// +listType=atomic
	Resources []string `json:"resources,omitempty" protobuf:"bytes,3,rep,name=resources"`
}

// TenantStatus is the last observed state of a tenant.
type TenantStatus struct {
	// namespace is the tenant's namespace.
	// +optional
	Namespace string `json:"namespace,omitempty" protobuf:"bytes,1,opt,name=namespace"`
	// instances is the number of instances in the namespace.
	// +optional
	Instances int32 `json:"instances,omitempty" protobuf:"varint,2,opt,name=instances"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty" protobuf:"bytes,3,rep,name=conditions"`
}
