package measurement

import (
	"cmp"
	"encoding/json"
	"math"
	"strings"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/rpc/usage"
)

// Node returns a node's usage in the API's format.
func Node(name string, u *nodev1.Usage) usage.Item {
	document := nodeDocument(name, u)
	return usage.Item{
		Name: name, Node: name, CPUMillis: u.GetCpuMillis(), MemoryBytes: u.GetMemoryBytes(),
		CPUPercent: &document.CPU.CurrentUsage, MemoryPercent: &document.Memory.CurrentUsage, Raw: text(document),
	}
}

// Instance returns an instance's usage in the API's format. The template is that of its revision,
// or nil if the revision is not known.
func Instance(in *rikv1alpha1.Instance, t *rikv1alpha1.InstanceTemplate, u *nodev1.Usage) usage.Item {
	document := appDocument(in, t, u)
	return usage.Item{
		Namespace: in.Namespace, Name: in.Name, Node: in.Spec.NodeName,
		CPUMillis: u.GetCpuMillis(), MemoryBytes: u.GetMemoryBytes(), VM: document.VM, Raw: text(document),
	}
}

// nodeUsage has the keys of both papers: "Realtime node resources" of the node agent's paper, and
// the riklet's metrics, whose objects have the same names and other members. The last two fields
// are rik's own, for tools that need plain numbers.
type nodeUsage struct {
	ID          string      `json:"id"`
	State       string      `json:"state"`
	Timestamp   int64       `json:"timestamp"`
	CPU         cpuUsage    `json:"cpu"`
	Memory      memoryUsage `json:"memory"`
	Disks       []diskUsage `json:"disks"`
	CPUMillis   int64       `json:"cpuMillis"`
	MemoryBytes int64       `json:"memoryBytes"`
}

type cpuUsage struct {
	TotalCPU     int32   `json:"totalCpu"`
	CurrentUsage float64 `json:"currentUsage"`
	Total        int32   `json:"total"`
	Free         float64 `json:"free"`
}

type memoryUsage struct {
	TotalMemory  int64   `json:"totalMemory"`
	CurrentUsage float64 `json:"currentUsage"`
	Total        int64   `json:"total"`
	Free         int64   `json:"free"`
}

type diskUsage struct {
	DiskName string `json:"disk_name"`
	Total    int64  `json:"total"`
	Free     int64  `json:"free"`
}

func nodeDocument(name string, u *nodev1.Usage) nodeUsage {
	m := u.GetMachine()
	total, free := m.GetMemoryTotalBytes(), m.GetMemoryAvailableBytes()
	out := nodeUsage{
		ID: name, State: "RUNNING", Timestamp: m.GetMeasuredUnix(),
		CPU:    cpuUsage{TotalCPU: m.GetCpus(), CurrentUsage: round(m.GetCpuPercent()), Total: m.GetCpus(), Free: round(100 - m.GetCpuPercent())},
		Memory: memoryUsage{TotalMemory: total, CurrentUsage: percent(u.GetMemoryBytes(), total), Total: total, Free: free},
		Disks:  []diskUsage{}, CPUMillis: u.GetCpuMillis(), MemoryBytes: u.GetMemoryBytes(),
	}
	for _, d := range m.GetDisks() {
		out.Disks = append(out.Disks, diskUsage{DiskName: d.GetName(), Total: d.GetTotalBytes(), Free: d.GetFreeBytes()})
	}
	return out
}

func percent(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return round(float64(part) / float64(whole) * 100)
}

// round keeps one decimal. More decimals are noise.
func round(f float64) float64 { return math.Round(f*10) / 10 }

// appUsage is "Realtime app resources" of the node agent's paper. The last three fields are rik's
// own.
type appUsage struct {
	AppID        string    `json:"appId"`
	State        string    `json:"state"`
	CreatedAt    int64     `json:"createdAt"`
	RestartCount int32     `json:"restartCount"`
	InternalIP   string    `json:"internalIp"`
	RunsOn       string    `json:"runsOn"`
	Deployment   origin    `json:"deployment"`
	CPUMillis    int64     `json:"cpuMillis"`
	MemoryBytes  int64     `json:"memoryBytes"`
	VM           *usage.VM `json:"vm,omitempty"`
}

type origin struct {
	App        string `json:"app"`
	Repository string `json:"repository"`
	Version    string `json:"version"`
}

func appDocument(in *rikv1alpha1.Instance, t *rikv1alpha1.InstanceTemplate, u *nodev1.Usage) appUsage {
	source, version := sourceOf(t)
	if version == "" {
		source, version = splitSource(source)
	}
	out := appUsage{
		AppID: in.Name, State: strings.ToUpper(string(in.Status.Phase)), InternalIP: in.Status.Address, RunsOn: in.Spec.NodeName,
		Deployment: origin{App: in.Spec.Workload, Repository: source, Version: version},
		CPUMillis:  u.GetCpuMillis(), MemoryBytes: u.GetMemoryBytes(),
	}
	if started := in.Status.StartedAt; started != nil {
		out.CreatedAt = started.Unix()
	}
	for i := range in.Status.Containers {
		out.RestartCount += in.Status.Containers[i].RestartCount
	}
	if v := u.GetVm(); v != nil {
		out.VM = &usage.VM{
			VCPUNanos: v.GetVcpuNanos(), Exits: v.GetExits(), DiskReadBytes: v.GetDiskReadBytes(), DiskWriteBytes: v.GetDiskWriteBytes(),
			DiskReads: v.GetDiskReads(), DiskWrites: v.GetDiskWrites(),
			NetworkReceiveBytes: v.GetNetworkReceiveBytes(), NetworkTransmitBytes: v.GetNetworkTransmitBytes(),
		}
	}
	return out
}

// sourceOf returns the first container's image, or the source of a Function or an App. version is
// an App's version.
func sourceOf(t *rikv1alpha1.InstanceTemplate) (source, version string) {
	if t == nil {
		return "", ""
	}
	switch processes := t.Processes(); {
	case t.Function != nil:
		return cmp.Or(t.Function.Execution.Image, t.Function.Execution.Rootfs), ""
	case t.App != nil:
		return t.App.Repo, t.App.Version
	case len(processes) > 0:
		return processes[0].Image, ""
	}
	return "", ""
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

// text encodes types of this package. Their numbers are finite, so it cannot fail.
func text(v any) json.RawMessage {
	encoded, err := json.Marshal(v)
	if err != nil {
		panic("programmer error: encoding a usage: " + err.Error())
	}
	return encoded
}
