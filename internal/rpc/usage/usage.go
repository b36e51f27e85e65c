// Package usage holds the JSON in which the API server's port shows the resource usage of nodes
// and instances.
package usage

import "encoding/json"

// Path is followed by nodes or instances. GET returns a List. The query parameter namespace
// restricts the instances to one namespace.
const Path = "/rik/metrics/"

// List is the answer to a request.
type List struct {
	Items []Item `json:"items"`
}

// Item is the current resource usage of a node or an instance.
type Item struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Node      string `json:"node,omitempty"`
	// CPUMillis is in thousandths of a core, MemoryBytes in bytes.
	CPUMillis   int64 `json:"cpuMillis"`
	MemoryBytes int64 `json:"memoryBytes"`
	// CPUPercent and MemoryPercent are percentages of the machine's total. Instances have none.
	CPUPercent    *float64 `json:"cpuPercent,omitempty"`
	MemoryPercent *float64 `json:"memoryPercent,omitempty"`
	// VM holds counters of a microVM. Other instances have none.
	VM *VM `json:"vm,omitempty"`
	// Raw is the usage in the format of the RIK papers.
	Raw json.RawMessage `json:"raw,omitempty"`
}

// VM holds the counters of a microVM since its VMM was started. The VMM and the node's kernel
// count them. Counters that they do not count are 0. Network bytes are from the guest's point
// of view.
type VM struct {
	VCPUNanos            uint64 `json:"vcpuNanos"`
	Exits                uint64 `json:"exits"`
	DiskReadBytes        uint64 `json:"diskReadBytes"`
	DiskWriteBytes       uint64 `json:"diskWriteBytes"`
	DiskReads            uint64 `json:"diskReads"`
	DiskWrites           uint64 `json:"diskWrites"`
	NetworkReceiveBytes  uint64 `json:"networkReceiveBytes"`
	NetworkTransmitBytes uint64 `json:"networkTransmitBytes"`
}
