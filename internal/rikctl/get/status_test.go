package get

import (
	"testing"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

func TestWholeStatus(t *testing.T) {
	t.Parallel()
	of := func(phases ...rikv1alpha1.InstancePhase) []rikv1alpha1.Instance {
		list := make([]rikv1alpha1.Instance, len(phases))
		for i := range phases {
			list[i].Status.Phase = phases[i]
		}
		return list
	}
	suspended := of(rikv1alpha1.InstanceRunning)
	suspended[0].Status.Suspended = true
	looping := of(rikv1alpha1.InstanceRunning)
	looping[0].Status.Containers = []rikv1alpha1.ContainerStatus{{State: rikv1alpha1.ContainerWaiting, Reason: "CrashLoopBackOff"}}
	failed := of(rikv1alpha1.InstanceFailed)
	failed[0].Status.Reason = "OOMKilled"
	for want, tc := range map[string]struct {
		instances []rikv1alpha1.Instance
		deploy    rikv1alpha1.DeployMode
	}{
		"Pending":                {nil, rikv1alpha1.DeployAutomatic},
		"Stopped":                {nil, rikv1alpha1.DeployManual},
		"Completed":              {of(rikv1alpha1.InstanceCompleted), ""},
		"Running":                {of(rikv1alpha1.InstanceRunning, rikv1alpha1.InstanceRunning), ""},
		"1 Completed, 2 Running": {of(rikv1alpha1.InstanceRunning, rikv1alpha1.InstanceCompleted, rikv1alpha1.InstanceRunning), ""},
		"Suspended":              {suspended, ""},
		"CrashLoopBackOff":       {looping, ""},
		"OOMKilled":              {failed, ""},
		"Unknown":                {of(rikv1alpha1.InstanceUnknown), ""},
	} {
		if got := wholeStatus(&rikv1alpha1.Workload{Spec: rikv1alpha1.WorkloadSpec{Deploy: tc.deploy}}, tc.instances); got != want {
			t.Errorf("wholeStatus() = %q, want %q", got, want)
		}
	}
}
