package instance

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

func TestOccurrences(t *testing.T) {
	t.Parallel()
	type status = rikv1alpha1.InstanceStatus
	type container = rikv1alpha1.ContainerStatus
	later := metav1.NewTime(noon.Add(time.Minute))
	running := func(c container) status {
		c.Name = "main"
		return status{Phase: rikv1alpha1.InstanceRunning, Containers: []container{c}}
	}
	end := func(reason string, code int32, at metav1.Time) *rikv1alpha1.ContainerEnd {
		return &rikv1alpha1.ContainerEnd{Reason: reason, Message: "why", ExitCode: code, FinishedAt: &at}
	}
	waiting := func(reason string, last *rikv1alpha1.ContainerEnd) status {
		return running(container{State: rikv1alpha1.ContainerWaiting, Reason: reason, Message: "why", LastState: last})
	}
	up := running(container{State: rikv1alpha1.ContainerRunning})
	unready := running(container{State: rikv1alpha1.ContainerRunning, Reason: "NotReady", Message: "refused"})
	crashed := waiting("CrashLoopBackOff", end("Error", 1, noon))
	again := running(container{State: rikv1alpha1.ContainerRunning, RestartCount: 1, LastState: end("Error", 1, noon)})
	creating := func(reason, message string) status {
		return status{Phase: rikv1alpha1.InstanceCreating, Reason: reason, Message: message}
	}
	pending := status{Phase: rikv1alpha1.InstancePending, Reason: "InsufficientCPU", Message: "0 of 1"}
	failed := status{Phase: rikv1alpha1.InstanceFailed, Message: "gone"}
	backOff := occurrence{"BackOff", "Restarting", `container "main" exited with code 1 (Error) and is started again after a pause`}
	for name, tc := range map[string]struct {
		before, after status
		want          []occurrence
	}{
		"nothing new":         {up, up, nil},
		"unplaced":            {status{Phase: rikv1alpha1.InstancePending}, pending, []occurrence{{"FailedScheduling", "Placing", "0 of 1"}}},
		"unplaced as before":  {pending, pending, nil},
		"failed":              {up, failed, []occurrence{{"Failed", "Running", "gone"}}},
		"a crash":             {up, crashed, []occurrence{backOff}},
		"running again":       {crashed, again, nil},
		"the next crash":      {again, waiting("CrashLoopBackOff", end("Error", 1, later)), []occurrence{backOff}},
		"a missed second run": {crashed, waiting("CrashLoopBackOff", end("Error", 1, later)), []occurrence{backOff}},
		"out of memory, running again before the report": {up, running(container{State: rikv1alpha1.ContainerRunning, RestartCount: 1, LastState: end("OOMKilled", 137, noon)}),
			[]occurrence{{"OOMKilled", "Running", `container "main" was killed: why`}}},
		"out of memory, and it goes on": {up, running(container{State: rikv1alpha1.ContainerRunning, LastState: end("OOMKilled", 137, noon)}),
			[]occurrence{{"OOMKilled", "Running", `container "main" ran out of memory: why`}}},
		"a failed liveness probe": {up, waiting("CrashLoopBackOff", end("Unhealthy", 137, noon)), []occurrence{
			{"Unhealthy", "Probing", `container "main" was ended: why`},
			{"BackOff", "Restarting", `container "main" exited with code 137 (Unhealthy) and is started again after a pause`},
		}},
		"a lost microVM": {up, waiting("CrashLoopBackOff", end("VMEnded", 137, noon)), []occurrence{
			{"VMEnded", "Running", `container "main" ended: why`},
			{"BackOff", "Restarting", `container "main" exited with code 137 (VMEnded) and is started again after a pause`},
		}},
		"volumes that were lost with it": {
			running(container{State: rikv1alpha1.ContainerWaiting, LastState: end("VMEnded", 137, noon)}),
			running(container{State: rikv1alpha1.ContainerWaiting, LastState: end("VolumesLost", 137, noon)}),
			[]occurrence{{"VolumesLost", "Running", `container "main" ended: why`}},
		},
		"not ready":           {up, unready, []occurrence{{"Unhealthy", "Probing", `container "main" is not ready: refused`}}},
		"still not ready":     {unready, unready, nil},
		"an image":            {creating("", ""), waiting("ImagePullFailed", nil), []occurrence{{"ImagePullFailed", "Starting", `container "main" does not start: why`}}},
		"the image as before": {waiting("ImagePullFailed", nil), waiting("ImagePullFailed", nil), nil},
		"an image that fails the instance": {creating("", ""), func() status {
			s := waiting("InvalidImage", nil)
			s.Phase, s.Reason, s.Message = rikv1alpha1.InstanceFailed, "InvalidImage", `container "main": why`
			return s
		}(), []occurrence{{"InvalidImage", "Running", `container "main": why`}}},
		"a node's trouble": {creating("", ""), creating("PrepareFailed", "no disk"), []occurrence{{"PrepareFailed", "Creating", "no disk"}}},
		"creating":         {creating("", ""), creating("ContainerCreating", ""), nil},
		"silent":           {up, status{Phase: rikv1alpha1.InstanceUnknown, Reason: ReasonNodeUnreachable, Containers: up.Containers}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, occurrences(&tc.before, &tc.after), cmp.AllowUnexported(occurrence{})); diff != "" {
				t.Errorf("happenings (-want +got):\n%s", diff)
			}
		})
	}
}
