package top

import (
	"bytes"
	"testing"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/rikctltest"
	"rik.dev/rik/internal/rpc/usage"
	"rik.dev/rik/internal/testkit/golden"
)

func TestTopGolden(t *testing.T) {
	t.Parallel()
	items := []usage.Item{
		{Name: "worker-1", Namespace: "shop", Node: "worker-1", CPUMillis: 500, MemoryBytes: 6 << 30},
		{Name: "worker-2", Namespace: "default", Node: "worker-2", CPUMillis: 750, MemoryBytes: 5<<20 + 17},
		{Name: "worker-3", Namespace: "default", Node: "worker-2", CPUMillis: 0, MemoryBytes: 300 << 10},
	}
	var out bytes.Buffer
	byCPU, err := choose(items, "nodes", nil, "cpu")
	if err != nil {
		t.Fatal(err)
	}
	if err := printTopNodes(&out, byCPU, []rikv1alpha1.Node{*rikctltest.Node()}, false); err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "top-nodes"+".golden", out.Bytes())
	out.Reset()
	if err := printTopInstances(&out, byCPU, topFlags{allSpaces: true}); err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "top-instances"+".golden", out.Bytes())
	out.Reset()
	byCPU[1].VM = &usage.VM{VCPUNanos: 12_345_678_901, Exits: 99, DiskReadBytes: 3 << 20, DiskWriteBytes: 1023, NetworkReceiveBytes: 5 << 10, NetworkTransmitBytes: 7 << 30}
	if err := printTopVMs(&out, byCPU, topFlags{allSpaces: true}); err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "top-vms"+".golden", out.Bytes())

	if got, err := choose(items, "nodes", []string{"worker-2"}, ""); err != nil || len(got) != 1 || got[0].Name != "worker-2" {
		t.Errorf("choose by name = %v, %v", got, err)
	}
	if _, err := choose(items, "nodes", []string{"worker-9"}, ""); err == nil {
		t.Error("choose of a missing node = nil, want an error")
	}
}
