package v0

import (
	"bytes"
	"encoding/json"
)

// Kind of a published workload.
type Kind string

// The two kinds that published clients know.
const (
	KindPod      Kind = "Pod"
	KindFunction Kind = "Function"
)

// The apiVersions that published documents carry; they mean the same.
const (
	APIVersion0 = "v0"
	APIVersion1 = "v1"
)

// AnnotationAPIVersion keeps the apiVersion of a document that did not say v0,
// so that its author reads back what they wrote.
const AnnotationAPIVersion = "rik.dev/v0-api-version"

// Definition is a workload as published clients write it.
type Definition struct {
	APIVersion string `json:"apiVersion"`
	Kind       Kind   `json:"kind"`
	Name       string `json:"name"`
	// Replicas is kept with the workload and starts nothing; 1 when absent.
	Replicas *int32 `json:"replicas,omitempty"`
	Spec     Spec   `json:"spec"`
}

// Spec holds the containers of a Pod or the function of a Function.
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

// Port is a port of a container. Its keys differ from those of Exposure; both
// are as published.
type Port struct {
	Port       int32  `json:"port"`
	TargetPort int32  `json:"target_port"`
	Protocol   string `json:"protocol,omitempty"`
	// Type is clusterIP, nodePort or loadBalancer, in any case.
	Type string `json:"type"`
}

// Ports is one port object, which is what was published, or a list of them.
type Ports []Port

// MarshalJSON writes a single port as an object, for clients that know no list.
func (p Ports) MarshalJSON() ([]byte, error) {
	if len(p) == 1 {
		return json.Marshal(p[0])
	}
	return json.Marshal([]Port(p))
}

// UnmarshalJSON reads an object or a list. It lets unknown keys pass, since a
// nested unmarshaler cannot tell their path; Decode looks for those itself.
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

// Execution says what the microVM runs.
type Execution struct {
	// Rootfs is the URL of a root file system.
	Rootfs string `json:"rootfs"`
}

// Exposure is the port of a Function.
type Exposure struct {
	Port       int32 `json:"port"`
	TargetPort int32 `json:"targetPort"`
	// Type is NodePort, the only one that was published; nodePort when absent.
	Type string `json:"type"`
}

// Status of a published instance.
type Status string

// The words that published clients know, and Unknown, which only their wire
// protocol has.
const (
	StatusUnknown    Status = "Unknown"
	StatusPending    Status = "Pending"
	StatusRunning    Status = "Running"
	StatusFailed     Status = "Failed"
	StatusTerminated Status = "Terminated"
	StatusCreating   Status = "Creating"
	StatusDestroying Status = "Destroying"
)

// Instance is an instance as published clients read it, and the JSON that the
// published gRPC services carry in their field "definition".
type Instance struct {
	WorkloadID string `json:"workload_id"`
	Namespace  string `json:"namespace"`
	ID         string `json:"id"`
	Kind       Kind   `json:"kind"`
	Status     Status `json:"status"`
	Spec       Spec   `json:"spec"`
}
