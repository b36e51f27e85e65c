package v0

import (
	"bytes"
	"encoding/json"
)

// Kind is the kind of a published workload.
type Kind string

// The kinds of published clients.
const (
	KindPod      Kind = "Pod"
	KindFunction Kind = "Function"
)

// The apiVersions of published documents. They have the same meaning.
const (
	APIVersion0 = "v0"
	APIVersion1 = "v1"
)

// AnnotationAPIVersion stores the apiVersion of a document if it is not v0, so that clients read
// the same document again.
const AnnotationAPIVersion = "rik.dev/v0-api-version"

// Definition is a workload in the format of published clients.
type Definition struct {
	APIVersion string `json:"apiVersion"`
	Kind       Kind   `json:"kind"`
	Name       string `json:"name"`
	// Replicas is stored with the workload and starts no instances. The default is 1.
	Replicas *int32 `json:"replicas,omitempty"`
	Spec     Spec   `json:"spec"`
}

// Spec has the containers of a Pod or the function of a Function.
type Spec struct {
	Containers []Container `json:"containers"`
	Function   *Function   `json:"function,omitempty"`
}

// Container is one container of a Pod.
type Container struct {
	Name  string   `json:"name"`
	Image string   `json:"image"`
	Env   []EnvVar `json:"env,omitempty"`
	Ports Ports    `json:"ports,omitempty"`
}

// EnvVar is one environment variable.
type EnvVar struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Port is a port of a container. The published keys of Port and Exposure differ.
type Port struct {
	Port       int32  `json:"port"`
	TargetPort int32  `json:"target_port"`
	Protocol   string `json:"protocol,omitempty"`
	// Type is clusterIP, nodePort or loadBalancer, in upper or lower case.
	Type string `json:"type"`
}

// Ports is one port object, as in the published API, or a list of them.
type Ports []Port

// MarshalJSON writes a single port as an object, for clients that do not support lists.
func (p Ports) MarshalJSON() ([]byte, error) {
	if len(p) == 1 {
		return json.Marshal(p[0])
	}
	return json.Marshal([]Port(p))
}

// UnmarshalJSON reads an object or a list. It ignores unknown keys, because it does not know their
// paths. Decode reports them.
func (p *Ports) UnmarshalJSON(data []byte) error {
	if isObject(data) {
		var one Port
		if err := json.Unmarshal(data, &one); err != nil {
			return err
		}
		*p = Ports{one}
		return nil
	}
	var list []Port
	if err := json.Unmarshal(data, &list); err != nil {
		return err
	}
	*p = list
	return nil
}

func isObject(data []byte) bool {
	return bytes.HasPrefix(bytes.TrimSpace(data), []byte("{"))
}

// Function is a microVM.
type Function struct {
	Execution Execution `json:"execution"`
	Exposure  *Exposure `json:"exposure,omitempty"`
}

// Execution is the program of the microVM.
type Execution struct {
	// Rootfs is the URL of a root file system.
	Rootfs string `json:"rootfs"`
}

// Exposure is the port of a Function.
type Exposure struct {
	Port       int32 `json:"port"`
	TargetPort int32 `json:"targetPort"`
	// Type is the type of the port. The published API has only NodePort, which is also the
	// default.
	Type string `json:"type"`
}

// Status is the status of a published instance.
type Status string

// The status values of published clients. Only their wire protocol has Unknown.
const (
	StatusUnknown    Status = "Unknown"
	StatusPending    Status = "Pending"
	StatusRunning    Status = "Running"
	StatusFailed     Status = "Failed"
	StatusTerminated Status = "Terminated"
	StatusCreating   Status = "Creating"
	StatusDestroying Status = "Destroying"
)

// Instance is an instance in the format of published clients. The published gRPC services have this
// JSON in their field "definition".
type Instance struct {
	WorkloadID string `json:"workload_id"`
	Namespace  string `json:"namespace"`
	ID         string `json:"id"`
	Kind       Kind   `json:"kind"`
	Status     Status `json:"status"`
	Spec       Spec   `json:"spec"`
}
