package trouble

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

func TestTroublesAreExplained(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		status rikv1alpha1.InstanceStatus
		what   []string // words in the first problem; empty: no problem
		next   string
	}{
		"fine": {status: rikv1alpha1.InstanceStatus{Phase: rikv1alpha1.InstanceRunning, Ready: true, Containers: []rikv1alpha1.ContainerStatus{
			{Name: "web", State: rikv1alpha1.ContainerRunning, Ready: true},
		}}},
		"completed": {status: rikv1alpha1.InstanceStatus{Phase: rikv1alpha1.InstanceCompleted, Containers: []rikv1alpha1.ContainerStatus{
			{Name: "web", State: rikv1alpha1.ContainerExited, Reason: "Completed", ExitCode: new(int32(0))},
		}}},
		"crash loop": {rikv1alpha1.InstanceStatus{Reason: reasonCrashLoop, Containers: []rikv1alpha1.ContainerStatus{
			{Name: "web", State: rikv1alpha1.ContainerWaiting, Reason: reasonCrashLoop, Message: "last run: Error", RestartCount: 6, ExitCode: new(int32(7))},
		}}, []string{"container web exits again and again", "6 restarts", "last run: Error", "code 7"}, `"rikctl logs i1"`},
		"image": {rikv1alpha1.InstanceStatus{Reason: reasonImagePull, Containers: []rikv1alpha1.ContainerStatus{
			{Name: "web", State: rikv1alpha1.ContainerWaiting, Reason: reasonImagePull, Message: "the registry is away"},
		}}, []string{"container web waits: ImagePullFailed: the registry is away"}, "registry"},
		"image of an init container": {rikv1alpha1.InstanceStatus{InitContainers: []rikv1alpha1.ContainerStatus{
			{Name: "first", State: rikv1alpha1.ContainerWaiting, Reason: reasonImagePull, Message: "the registry is away"},
		}, Containers: []rikv1alpha1.ContainerStatus{{Name: "web", State: rikv1alpha1.ContainerWaiting}}}, []string{"container first waits"}, "registry"},
		"pulling": {rikv1alpha1.InstanceStatus{Containers: []rikv1alpha1.ContainerStatus{
			{Name: "web", State: rikv1alpha1.ContainerWaiting, Reason: reasonPulling, Message: "pulling a:v1: 1.0 MiB of 4.0 MiB"},
		}}, []string{"1.0 MiB of 4.0 MiB"}, "wait"},
		"not ready": {rikv1alpha1.InstanceStatus{Containers: []rikv1alpha1.ContainerStatus{
			{Name: "web", State: rikv1alpha1.ContainerRunning, Reason: reasonNotReady, Message: "readiness probe failed: HTTP 500"},
		}}, []string{"runs but is not ready", "HTTP 500"}, "readiness probe"},
		"failed": {rikv1alpha1.InstanceStatus{Containers: []rikv1alpha1.ContainerStatus{
			{Name: "web", State: rikv1alpha1.ContainerExited, Reason: "OOMKilled", ExitCode: new(int32(137))}, {Name: "other", State: rikv1alpha1.ContainerRunning},
		}}, []string{"container web ended with code 137: OOMKilled"}, `"rikctl logs i1 -c web"`},
		"of the instance": {rikv1alpha1.InstanceStatus{Reason: "PrepareFailed", Message: "no room"}, []string{"PrepareFailed: no room"}, "rikctl describe instance i1"},
	} {
		i := &rikv1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Name: "i1"}, Spec: rikv1alpha1.InstanceSpec{NodeName: "n1"}, Status: tc.status}
		got := ofInstance(i)
		var out strings.Builder
		Print(&out, i)
		if len(tc.what) == 0 {
			if len(got) > 0 || out.Len() > 0 {
				t.Errorf("%s: %+v, printed %q, want nothing", name, got, out.String())
			}
			continue
		}
		if len(got) == 0 {
			t.Errorf("%s: no trouble", name)
			continue
		}
		for _, want := range tc.what {
			if !strings.Contains(got[0].what, want) || !strings.Contains(out.String(), want) {
				t.Errorf("%s: %q, printed %q, want %q", name, got[0].what, out.String(), want)
			}
		}
		if !strings.Contains(got[0].next, tc.next) || !strings.Contains(out.String(), "next: ") {
			t.Errorf("%s: next %q, want %q", name, got[0].next, tc.next)
		}
	}
}

func TestWhatHasNotStarted(t *testing.T) {
	t.Parallel()
	i := &rikv1alpha1.Instance{Status: rikv1alpha1.InstanceStatus{Reason: "ContainerCreating", Containers: []rikv1alpha1.ContainerStatus{
		{Name: "web", State: rikv1alpha1.ContainerWaiting}, {Name: "again", State: rikv1alpha1.ContainerWaiting, RestartCount: 1, StartedAt: &metav1.Time{}},
	}}}
	for container, want := range map[string]string{"": "web", "web": "web", "again": "", "none": ""} {
		name, why := NotStarted(i, container)
		if name != want || (why != nil) != (want != "") || why != nil && why.Error() != "ContainerCreating" {
			t.Errorf("notStarted(%q) = %q, %v, want %q", container, name, why, want)
		}
	}
}
