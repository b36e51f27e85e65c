package monitor

import (
	"encoding/json"
	"strconv"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// NodeResources describes a node's resources: "Node resources" of the node agent's paper, with
// its keys.
type NodeResources struct {
	ID            string     `json:"id"`
	CPU           int32      `json:"cpu"`
	Memory        int64      `json:"memory"`
	DiskSize      int64      `json:"disksize"`
	Distrib       string     `json:"distrib"`
	Version       version    `json:"version"`
	Type          string     `json:"type"`
	Arch          string     `json:"arch"`
	KernelVersion string     `json:"kernelVersion"`
	Networking    networking `json:"networking"`
}

type networking struct {
	Hostname   string `json:"hostname"`
	InternalIP string `json:"internalip"`
	ExternalIP string `json:"externalip"`
}

// version is encoded as a number if possible, as in the paper, and as a text for distributions
// whose versions are words.
type version string

// MarshalJSON implements json.Marshaler.
func (v version) MarshalJSON() ([]byte, error) {
	// A number such as 22.10 would lose its zero.
	if n, err := strconv.ParseFloat(string(v), 64); err == nil && json.Valid([]byte(v)) && strconv.FormatFloat(n, 'f', -1, 64) == string(v) {
		return []byte(v), nil
	}
	return json.Marshal(string(v))
}

// Resources returns the facts of a node in the paper's format.
func Resources(node string, info *rikv1alpha1.NodeInfo) NodeResources {
	return NodeResources{
		ID: node, CPU: info.CPUs, Memory: info.MemoryBytes, DiskSize: info.DiskBytes,
		Distrib: info.Distribution, Version: version(info.DistributionVersion), Type: info.OperatingSystem,
		Arch: info.Architecture, KernelVersion: info.KernelVersion,
		Networking: networking{Hostname: info.Hostname, InternalIP: info.InternalAddress, ExternalIP: info.ExternalAddress},
	}
}
