package monitor

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"

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

// NodeUsage is a node's current usage. It has the keys of both papers: "Realtime node resources"
// of the node agent's paper, and the riklet's metrics, whose objects have the same names and
// other members. The last two fields are rik's own, for tools that need plain numbers.
type NodeUsage struct {
	ID          string      `json:"id"`
	State       string      `json:"state"`
	Timestamp   int64       `json:"timestamp"`
	CPU         cpuUsage    `json:"cpu"`
	Memory      memoryUsage `json:"memory"`
	Disks       []diskUsage `json:"disks"`
	CPUMillis   int64       `json:"cpuMillis"`
	MemoryBytes uint64      `json:"memoryBytes"`
}

type cpuUsage struct {
	TotalCPU     int     `json:"totalCpu"`
	CurrentUsage float64 `json:"currentUsage"`
	Total        int     `json:"total"`
	Free         float64 `json:"free"`
}

type memoryUsage struct {
	TotalMemory  uint64  `json:"totalMemory"`
	CurrentUsage float64 `json:"currentUsage"`
	Total        uint64  `json:"total"`
	Free         uint64  `json:"free"`
}

type diskUsage struct {
	DiskName string `json:"disk_name"`
	Total    uint64 `json:"total"`
	Free     uint64 `json:"free"`
}

// Usage converts a reading of a node to the papers' formats.
func Usage(node string, r Reading) NodeUsage {
	used := r.MemoryTotal - min(r.MemoryAvailable, r.MemoryTotal)
	u := NodeUsage{
		ID: node, State: "RUNNING", Timestamp: r.At.Unix(),
		CPU:         cpuUsage{TotalCPU: r.CPUs, CurrentUsage: round(r.CPUPercent), Total: r.CPUs, Free: round(100 - r.CPUPercent)},
		Memory:      memoryUsage{TotalMemory: r.MemoryTotal, CurrentUsage: percent(used, r.MemoryTotal), Total: r.MemoryTotal, Free: r.MemoryAvailable},
		Disks:       []diskUsage{},
		CPUMillis:   int64(math.Round(r.CPUPercent * float64(r.CPUs) * 10)),
		MemoryBytes: used,
	}
	for _, d := range r.Disks {
		u.Disks = append(u.Disks, diskUsage{DiskName: d.Name, Total: d.Total, Free: d.Free})
	}
	return u
}

func percent(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return round(float64(part) / float64(whole) * 100)
}

// round keeps one decimal. More decimals are noise, and would make every text different.
func round(f float64) float64 { return math.Round(f*10) / 10 }

// AppUsage is an instance's current usage: "Realtime app resources" of the node agent's paper.
// The last three fields are rik's own.
type AppUsage struct {
	AppID        string     `json:"appId"`
	State        string     `json:"state"`
	CreatedAt    int64      `json:"createdAt"`
	RestartCount int32      `json:"restartCount"`
	InternalIP   string     `json:"internalIp"`
	RunsOn       string     `json:"runsOn"`
	Deployment   deployment `json:"deployment"`
	CPUMillis    int64      `json:"cpuMillis"`
	MemoryBytes  uint64     `json:"memoryBytes"`
	VM           *vmUsage   `json:"vm,omitempty"`
}

// vmUsage contains counters of a microVM since the start of its VMM.
type vmUsage struct {
	VCPUNanos            uint64 `json:"vcpuNanos"`
	Exits                uint64 `json:"exits"`
	DiskReadBytes        uint64 `json:"diskReadBytes"`
	DiskWriteBytes       uint64 `json:"diskWriteBytes"`
	DiskReads            uint64 `json:"diskReads"`
	DiskWrites           uint64 `json:"diskWrites"`
	NetworkReceiveBytes  uint64 `json:"networkReceiveBytes"`
	NetworkTransmitBytes uint64 `json:"networkTransmitBytes"`
}

type deployment struct {
	App        string `json:"app"`
	Repository string `json:"repository"`
	Version    string `json:"version"`
}

// App returns an instance's usage in the paper's format. cpuMillis is its CPU usage since the
// last reading.
func App(node string, in Instance, cpuMillis int64) AppUsage {
	repository, tag := in.Source, in.Version
	if tag == "" {
		repository, tag = splitSource(in.Source)
	}
	id := in.Name
	if id == "" {
		id = in.UID
	}
	created := int64(0)
	if !in.Usage.StartedAt.IsZero() {
		created = in.Usage.StartedAt.Unix()
	}
	return AppUsage{
		AppID: id, State: strings.ToUpper(string(in.Phase)), CreatedAt: created, RestartCount: in.Usage.Restarts,
		InternalIP: in.Address, RunsOn: node, Deployment: deployment{App: in.Workload, Repository: repository, Version: tag},
		CPUMillis: cpuMillis, MemoryBytes: in.Usage.MemoryBytes, VM: (*vmUsage)(in.Usage.VM),
	}
}

// splitSource splits a digest or tag off an image reference.
func splitSource(source string) (repository, tag string) {
	if at := strings.LastIndexByte(source, '@'); at >= 0 {
		return source[:at], source[at+1:]
	}
	if colon := strings.LastIndexByte(source, ':'); colon > strings.LastIndexByte(source, '/') {
		return source[:colon], source[colon+1:]
	}
	return source, ""
}
