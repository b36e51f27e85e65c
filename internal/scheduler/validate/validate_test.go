package validate

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

func registers(t *testing.T, change func(*schedulerv1.Register, *rikv1alpha1.NodeStatus)) (*schedulerv1.Register, *rikv1alpha1.NodeStatus, error) {
	t.Helper()
	r := &schedulerv1.Register{NodeName: "a", Running: []string{"i"}}
	s := &rikv1alpha1.NodeStatus{
		Capacity: rikv1alpha1.ResourceList{rikv1alpha1.ResourceCPU: resource.MustParse("4"), rikv1alpha1.ResourceMemory: resource.MustParse("8Gi")},
		Info:     rikv1alpha1.NodeInfo{InternalAddress: "192.0.2.1", Kinds: []rikv1alpha1.WorkloadKind{rikv1alpha1.KindPod}},
	}
	change(r, s)
	data, err := s.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	r.Status = data
	sent, err := Register(r)
	return r, sent, err
}

// TestRegistrationsThatAreRefused: an implausible registration is refused with the reason.
func TestRegistrationsThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*schedulerv1.Register, *rikv1alpha1.NodeStatus)
		want   string
	}{
		"a billion cores": {func(_ *schedulerv1.Register, s *rikv1alpha1.NodeStatus) {
			s.Capacity[rikv1alpha1.ResourceCPU] = resource.MustParse("1G")
		}, "and the limit is"},
		"more memory than there is, to reserve": {func(_ *schedulerv1.Register, s *rikv1alpha1.NodeStatus) {
			s.Allocatable = rikv1alpha1.ResourceList{rikv1alpha1.ResourceMemory: resource.MustParse("2Pi")}
		}, "allocatable of memory"},
		"negative amounts": {func(_ *schedulerv1.Register, s *rikv1alpha1.NodeStatus) {
			s.Capacity[rikv1alpha1.ResourceDisk] = resource.MustParse("-1")
		}, "which is negative"},
		"another resource": {func(_ *schedulerv1.Register, s *rikv1alpha1.NodeStatus) {
			s.Capacity["gold"] = resource.MustParse("1")
		}, `"gold"`},
		"a bad name": {func(r *schedulerv1.Register, _ *rikv1alpha1.NodeStatus) { r.NodeName = "A_b" }, "node name"},
		"too many instances": {func(r *schedulerv1.Register, _ *rikv1alpha1.NodeStatus) {
			r.Running = make([]string, MaxInstances+1)
		}, "and the limit is"},
		"too many labels": {func(r *schedulerv1.Register, _ *rikv1alpha1.NodeStatus) {
			r.Labels = map[string]string{}
			for i := range MaxLabels + 1 {
				r.Labels[fmt.Sprint("l", i)] = ""
			}
		}, "labels"},
		"endless taints":  {func(r *schedulerv1.Register, _ *rikv1alpha1.NodeStatus) { r.Taints = make([]byte, MaxTaints+1) }, "taints"},
		"a negative term": {func(r *schedulerv1.Register, _ *rikv1alpha1.NodeStatus) { r.HighestTerm = -1 }, "term"},
	} {
		if _, _, err := registers(t, tc.change); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, tc.want)
		}
	}
	if _, err := Register(nil); err == nil {
		t.Error("no registration is taken for one")
	}
	if _, err := Register(&schedulerv1.Register{NodeName: "a", Status: []byte("x")}); err == nil {
		t.Error("a status that is none is taken")
	}
}

func TestWhatIsLeftOfARegistration(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<20)
	r, sent, err := registers(t, func(r *schedulerv1.Register, s *rikv1alpha1.NodeStatus) {
		r.Running = append(r.Running, "", long)
		r.Labels = map[string]string{"ok": "yes", long: "no", "no": long}
		r.MachineId, r.Version = long, long
		s.Info.Hostname, s.Info.KernelVersion, s.Info.ExternalAddress = long, "6.1\n", "not an address"
		s.Info.Kinds = append(s.Info.Kinds, "Spaceship")
		s.Info.CPUs, s.Confirmation = -4, &rikv1alpha1.NodeConfirmation{ID: "x"}
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Running) != 1 || len(r.Labels) != 1 || r.Labels["ok"] != "yes" || len(r.MachineId) > MaxWord+3 || len(r.Version) > MaxWord+3 {
		t.Errorf("the registration is %d instances, labels %d", len(r.Running), len(r.Labels))
	}
	again := &rikv1alpha1.NodeStatus{}
	if err := again.Unmarshal(r.Status); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*rikv1alpha1.NodeStatus{sent, again} { // used here, passed on
		if len(s.Info.Hostname) > MaxWord+3 || s.Info.ExternalAddress != "" || s.Info.InternalAddress != "192.0.2.1" || len(s.Info.Kinds) != 1 || s.Info.CPUs != 0 || s.Confirmation != nil {
			t.Errorf("the status is %d bytes of host name, %+v", len(s.Info.Hostname), s.Info.Kinds)
		}
	}
}

func TestHeartbeatsAreBounded(t *testing.T) {
	t.Parallel()
	h := &schedulerv1.Heartbeat{Images: make([]string, MaxImages+5), UsedPorts: []*schedulerv1.UsedPort{
		{Protocol: "TCP", Port: 80}, {Protocol: "TCP", Port: 0}, {Protocol: "TCP", Port: 70000}, {Protocol: strings.Repeat("T", 100), Port: 81},
	}}
	h.Images[0] = strings.Repeat("i", MaxText+1)
	Heartbeat(h)
	if len(h.Images) != MaxImages-1 || len(h.UsedPorts) != 1 || h.UsedPorts[0].GetPort() != 80 {
		t.Errorf("%d images and ports %v are taken", len(h.Images), h.UsedPorts)
	}
}

func TestObservations(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]*schedulerv1.Observation{
		"no instance":          {Sequence: 1, Phase: "Running"},
		"an endless uid":       {Uid: strings.Repeat("u", 1000), Sequence: 1, Phase: "Running"},
		"another phase":        {Uid: "u", Sequence: 1, Phase: "Dancing"},
		"a sequence of before": {Uid: "u", Sequence: -1, Phase: "Running"},
	} {
		if ok, _ := Observation(o); ok {
			t.Errorf("%s is taken", name)
		}
	}
	long := strings.Repeat("m", 500_000)
	s := &rikv1alpha1.InstanceStatus{
		Message: long, Address: "10.42.0.3", HostAddress: "here", HostPorts: []int32{80, 0, -1, 70000},
		Containers: []rikv1alpha1.ContainerStatus{
			{Name: "main", State: rikv1alpha1.ContainerRunning, Message: long, LastState: &rikv1alpha1.ContainerEnd{Message: long}},
			{Name: "main"}, {Name: "../x"}, {Name: "other", State: "Dancing"},
		},
	}
	data, err := s.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	o := &schedulerv1.Observation{Uid: "u", Sequence: 1, Phase: "Running", Message: long, Status: data}
	ok, dropped := Observation(o)
	if !ok || dropped == "" || len(o.Message) > MaxText+3 || len(o.Status) > 4*MaxText {
		t.Fatalf("ok %v, dropped %q, %d bytes of message, %d of status", ok, dropped, len(o.Message), len(o.Status))
	}
	left := &rikv1alpha1.InstanceStatus{}
	if err := left.Unmarshal(o.Status); err != nil {
		t.Fatal(err)
	}
	if len(left.Containers) != 1 || left.Containers[0].State != rikv1alpha1.ContainerRunning || left.Address != "10.42.0.3" || left.HostAddress != "" || len(left.HostPorts) != 1 {
		t.Errorf("left is %+v", left)
	}
	broken := &schedulerv1.Observation{Uid: "u", Sequence: 1, Phase: "Failed", Status: []byte("x")}
	if ok, dropped := Observation(broken); !ok || dropped == "" || broken.Status != nil {
		t.Errorf("a status that is none: %v, %q", ok, dropped)
	}
}
