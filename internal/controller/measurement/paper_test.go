package measurement

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/rpc/usage"
	"rik.dev/rik/internal/testkit/golden"
)

// golden compares the paper's document of an item with testdata/name.
func compareJSON(t *testing.T, name string, item usage.Item) {
	t.Helper()
	var got bytes.Buffer
	if err := json.Indent(&got, item.Raw, "", "  "); err != nil {
		t.Fatal(err)
	}
	got.WriteByte('\n')
	golden.Compare(t, name, got.Bytes())
}

// instance returns an instance on the paper's node.
func instance(name, workload, address string, restarts ...int32) *rikv1alpha1.Instance {
	in := &rikv1alpha1.Instance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       rikv1alpha1.InstanceSpec{Workload: workload, NodeName: "node-639d7"},
		Status:     rikv1alpha1.InstanceStatus{Phase: rikv1alpha1.InstanceRunning, Address: address, StartedAt: &metav1.Time{Time: time.Unix(123456789, 0)}},
	}
	for _, n := range restarts {
		in.Status.Containers = append(in.Status.Containers, rikv1alpha1.ContainerStatus{RestartCount: n})
	}
	return in
}

// The numbers are those of the papers.
func TestNodeResourcesShape(t *testing.T) {
	t.Parallel()
	node := Node("node-639d7", &nodev1.Usage{CpuMillis: 2400, MemoryBytes: 17179869184, Machine: &nodev1.MachineUsage{
		MeasuredUnix: 123456789, Cpus: 12, CpuPercent: 20, MemoryTotalBytes: 34359738368, MemoryAvailableBytes: 17179869184,
		Disks: []*nodev1.DiskUsage{
			{Name: "/dev/nvme0n1p3", TotalBytes: 496896393216, FreeBytes: 247193731072}, {Name: "/dev/nvme0n1p1", TotalBytes: 824180736, FreeBytes: 765984768},
		},
	}})
	compareJSON(t, "node-usage.json", node)
	if node.Name != "node-639d7" || node.Node != "node-639d7" || node.CPUMillis != 2400 || node.MemoryBytes != 17179869184 || *node.CPUPercent != 20 || *node.MemoryPercent != 50 {
		t.Errorf("Node() = %+v", node)
	}
	app := Instance(instance("nginx-56Ksl", "nginx", "10.244.2.177", 1, 1),
		&rikv1alpha1.InstanceTemplate{App: &rikv1alpha1.App{Repo: "https://example.com", Version: "1.19.1"}},
		&nodev1.Usage{Uid: "uid", CpuMillis: 250, MemoryBytes: 1 << 20})
	compareJSON(t, "app-usage.json", app)
	if app.Namespace != "shop" || app.Name != "nginx-56Ksl" || app.Node != "node-639d7" || app.CPUMillis != 250 || app.MemoryBytes != 1<<20 || app.VM != nil || app.CPUPercent != nil {
		t.Errorf("Instance() = %+v", app)
	}
	vm := Instance(instance("thumbnails-7k2pq", "thumbnails", "10.244.2.178"),
		&rikv1alpha1.InstanceTemplate{Function: &rikv1alpha1.Function{Execution: rikv1alpha1.FunctionExecution{Rootfs: "https://example.com/root.tar.gz"}}},
		&nodev1.Usage{Uid: "uid", CpuMillis: 250, MemoryBytes: 1 << 28, Vm: &nodev1.VMUsage{
			VcpuNanos: 1, Exits: 2, DiskReadBytes: 3, DiskWriteBytes: 4, DiskReads: 5, DiskWrites: 6, NetworkReceiveBytes: 7, NetworkTransmitBytes: 8,
		}})
	compareJSON(t, "vm-usage.json", vm)
	if vm.VM == nil || vm.VM.NetworkTransmitBytes != 8 {
		t.Errorf("Instance() of a microVM = %+v", vm)
	}
	// The revision may be unknown for a moment.
	if got := Instance(instance("web", "web", ""), nil, &nodev1.Usage{}); got.Name != "web" || len(got.Raw) == 0 {
		t.Errorf("Instance() without a template = %+v", got)
	}
}

func TestSplitSource(t *testing.T) {
	t.Parallel()
	for source, want := range map[string][2]string{
		"nginx":                      {"nginx", ""},
		"nginx:1.19.1":               {"nginx", "1.19.1"},
		"host:5000/nginx":            {"host:5000/nginx", ""},
		"host:5000/nginx@sha256:abc": {"host:5000/nginx", "sha256:abc"},
		"oci:/images/web:latest":     {"oci:/images/web", "latest"},
		"oci:/images/web":            {"oci:/images/web", ""},
		"":                           {"", ""},
	} {
		if repository, tag := splitSource(source); repository != want[0] || tag != want[1] {
			t.Errorf("splitSource(%q) = %q, %q, want %v", source, repository, tag, want)
		}
	}
}
