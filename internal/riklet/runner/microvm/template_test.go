package microvm

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/disk"
	"rik.dev/rik/internal/riklet/guest"
	"rik.dev/rik/internal/riklet/runner/spec"
	"rik.dev/rik/internal/riklet/vmm"
)

func bounded(cpu, memory, diskSize string) rikv1alpha1.Resources {
	l := rikv1alpha1.ResourceList{}
	for name, text := range map[rikv1alpha1.ResourceName]string{
		rikv1alpha1.ResourceCPU: cpu, rikv1alpha1.ResourceMemory: memory, rikv1alpha1.ResourceDisk: diskSize,
	} {
		if text != "" {
			l[name] = resource.MustParse(text)
		}
	}
	return rikv1alpha1.Resources{Limits: l}
}

func TestSizeOfAMachine(t *testing.T) {
	t.Parallel()
	function := func(r rikv1alpha1.Resources) rikv1alpha1.InstanceTemplate {
		return rikv1alpha1.InstanceTemplate{Kind: rikv1alpha1.KindFunction, Function: &rikv1alpha1.Function{Resources: r}}
	}
	for name, tc := range map[string]struct {
		template rikv1alpha1.InstanceTemplate
		want     vmSize
	}{
		"no limits":         {function(bounded("", "", "")), vmSize{vcpus: 1, memory: 256 << 20, disk: 1 << 30}},
		"all limits":        {function(bounded("1500m", "300Mi", "2Gi")), vmSize{vcpus: 2, milliCPU: 1500, memory: 300 << 20, disk: 2 << 30}},
		"too little":        {function(bounded("1", "1Mi", "1")), vmSize{vcpus: 1, milliCPU: 1000, memory: vmm.MinMemory, disk: disk.MinWritable}},
		"not a mebibyte":    {function(bounded("1", "300000001", "")), vmSize{vcpus: 1, milliCPU: 1000, memory: 286 << 20, disk: 1 << 30}},
		"more than a VM is": {function(bounded("400", "", "")), vmSize{vcpus: 32, milliCPU: 400000, memory: 256 << 20, disk: 1 << 30}},
	} {
		if got := sizeOf(tc.template); got != tc.want {
			t.Errorf("%s: sizeOf() = %+v, want %+v", name, got, tc.want)
		}
	}
	two := rikv1alpha1.InstanceTemplate{Isolation: rikv1alpha1.IsolationMicroVM, Containers: []rikv1alpha1.Container{
		{Name: "a", Resources: bounded("1", "64Mi", "")}, {Name: "b"},
	}}
	if got, want := sizeOf(two), (vmSize{vcpus: 1, memory: (64 + 256 + 96) << 20, disk: 1 << 30}); got != want {
		t.Errorf("sizeOf() of a Pod = %+v, want %+v", got, want)
	}
}

func TestContainersOfOneImageShareItsDisk(t *testing.T) {
	t.Parallel()
	one, other := &disk.Image{Digest: "1", Path: "/d/1"}, &disk.Image{Digest: "2", Path: "/d/2"}
	containers := []rikv1alpha1.Container{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	disks, roots := disksOf(containers, map[string]*disk.Image{"a": one, "b": other, "c": one}, "/s", &rikv1alpha1.RateLimits{DiskBytesPerSecond: 7})
	want := []vmm.Disk{
		{ID: "scratch", Path: "/s", BytesPerSecond: 7}, {ID: "image-1", Path: "/d/1", ReadOnly: true, BytesPerSecond: 7},
		{ID: "image-2", Path: "/d/2", ReadOnly: true, BytesPerSecond: 7},
	}
	if diff := cmp.Diff(want, disks); diff != "" {
		t.Error(diff)
	}
	if roots["a"].Disk != (guest.Disk{ID: "image-1", Index: 1}) || roots["c"].Disk != roots["a"].Disk || roots["b"].Disk.Index != 2 {
		t.Errorf("roots = %+v", roots)
	}
}

func TestGuestProcess(t *testing.T) {
	t.Parallel()
	root := vmImage{Config: disk.ImageConfig{Entrypoint: []string{"/in"}, Cmd: []string{"arg"}, Env: []string{"A=image"}, WorkingDir: "/w", User: "7:8"}}
	template := rikv1alpha1.InstanceTemplate{Volumes: []rikv1alpha1.Volume{
		{Name: "m", ConfigMap: &rikv1alpha1.ObjectVolume{Name: "m"}}, {Name: "e", EmptyDir: &rikv1alpha1.EmptyDirVolume{}},
	}}
	c := rikv1alpha1.Container{
		Name: "c", Security: &rikv1alpha1.Security{DropCapabilities: []string{"ALL"}, ReadOnlyRootFilesystem: true},
		VolumeMounts: []rikv1alpha1.VolumeMount{{Name: "m", MountPath: "/m/"}, {Name: "e", MountPath: "/e", SubPath: "sub"}},
	}
	p, err := guestProcess(template, c, root, []spec.EnvVar{{Name: "A", Value: "own"}}, "host", 5)
	if err != nil {
		t.Fatal(err)
	}
	want := guest.Process{
		Container: "c", Argv: []string{"/in", "arg"}, Env: []string{spec.DefaultPath, "HOSTNAME=host", "A=own"}, Dir: "/w", User: "7:8",
		ReadOnlyRoot: true, PIDs: 5,
		Mounts: []guest.Mount{{Volume: "m", Target: "/m", ReadOnly: true}, {Volume: "e", Target: "/e", SubPath: "sub"}},
	}
	p.Capabilities = nil
	if diff := cmp.Diff(want, p); diff != "" {
		t.Error(diff)
	}
	for name, change := range map[string]func(*rikv1alpha1.Container){
		"a volume that is not there": func(c *rikv1alpha1.Container) {
			c.VolumeMounts = []rikv1alpha1.VolumeMount{{Name: "x", MountPath: "/x"}}
		},
		"the root": func(c *rikv1alpha1.Container) {
			c.VolumeMounts = []rikv1alpha1.VolumeMount{{Name: "e", MountPath: "/x/.."}}
		},
		"a way out": func(c *rikv1alpha1.Container) {
			c.VolumeMounts = []rikv1alpha1.VolumeMount{{Name: "e", MountPath: "/x", SubPath: "../.."}}
		},
	} {
		bad := c
		change(&bad)
		if _, err := guestProcess(template, bad, root, nil, "host", 5); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	// A root file system by URL has no configuration of its start.
	template.Function = &rikv1alpha1.Function{Execution: rikv1alpha1.FunctionExecution{Rootfs: "https://x.example/r"}}
	p, err = guestProcess(template, rikv1alpha1.Container{Name: "function"}, vmImage{}, nil, "host", 5)
	if err != nil || len(p.Argv) != 1 || p.Argv[0] != "/sbin/init" {
		t.Errorf("guestProcess() = %+v, %v", p, err)
	}
}

var errEnded = errors.New("the start ended")

func TestConcurrentBootsAreLimited(t *testing.T) {
	t.Parallel()
	e := &machines{boots: make(chan struct{}, 1)}
	release, err := e.bootSlot(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	stopped, stop := context.WithCancelCause(t.Context())
	stop(errEnded)
	if _, err := e.bootSlot(stopped, time.Hour); !errors.Is(err, errEnded) {
		t.Errorf("a second one at once: %v, want %v", err, errEnded)
	}
	release()
	if _, err := e.bootSlot(t.Context(), time.Hour); err != nil {
		t.Errorf("after the first one: %v", err)
	}
}

// TestSlowBootDelaysNoOther checks that slow machines do not block others: machines that are
// slow by their own limits boot for minutes.
func TestSlowBootDelaysNoOther(t *testing.T) {
	t.Parallel()
	e := &machines{boots: make(chan struct{}, 1)}
	slow, err := e.bootSlot(t.Context(), time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	waiting, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := e.bootSlot(waiting, time.Hour); err != nil {
		t.Fatalf("another machine waited for a slow one: %v", err)
	}
	slow() // does not release another machine's place
	stopped, stop := context.WithCancelCause(t.Context())
	stop(errEnded)
	if _, err := e.bootSlot(stopped, time.Hour); !errors.Is(err, errEnded) {
		t.Errorf("a third one at once: %v, want %v", err, errEnded)
	}
}
