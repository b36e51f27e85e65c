package instance

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/registry/store"
)

var table = store.Table[*rik.Instance]{
	Columns: []metav1.TableColumnDefinition{
		store.Name(),
		store.Column("Workload", "string", "Workload that it runs."),
		store.Column("Ready", "string", "Ready containers and all containers."),
		store.Column("Status", "string", "Its phase, or the reason why it does not run."),
		store.Column("Restarts", "string", "Restarts of its containers, or of its init containers while they run."),
		store.Age(),
		store.Wide("Node", "string", "Node that it is bound to."),
		store.Wide("Address", "string", "Its own address."),
		store.Wide("Revision", "string", "Revision of the workload that it runs."),
		store.Wide("Image", "string", "Digests of the images that run."),
	},
	Row: func(i *rik.Instance, now time.Time) []any {
		return []any{
			i.Name, i.Spec.Workload, ready(i), statusText(i), restarts(i, now), store.Since(i.CreationTimestamp, now),
			store.Or(i.Spec.NodeName), store.Or(i.Status.Address), store.Or(i.Spec.Revision), digests(i),
		}
	},
}

// ready counts the ready containers. The total is not known before the node has reported.
func ready(i *rik.Instance) string {
	if len(i.Status.Containers) == 0 {
		return "0/-"
	}
	n := 0
	for c := range i.Status.Containers {
		if i.Status.Containers[c].Ready {
			n++
		}
	}
	return fmt.Sprintf("%d/%d", n, len(i.Status.Containers))
}

// statusText returns the most informative status in one word.
func statusText(i *rik.Instance) string {
	s := &i.Status
	switch {
	case s.Phase == rik.InstanceUnknown:
		return string(rik.InstanceUnknown)
	case i.DeletionTimestamp != nil:
		return string(rik.InstanceDestroying)
	case s.Phase == rik.InstanceFailed && s.Reason != "":
		return s.Reason
	case s.Phase == rik.InstanceCompleted, s.Phase == rik.InstanceTerminated:
		return string(s.Phase)
	}
	for c := range s.InitContainers {
		if reason := trouble(&s.InitContainers[c]); reason != "" {
			return "Init:" + reason
		}
	}
	for c := range s.Containers {
		if reason := trouble(&s.Containers[c]); reason != "" {
			return reason
		}
	}
	if s.Phase == rik.InstanceRunning && s.Suspended {
		return rikv1alpha1.ReasonSuspended
	}
	if s.Phase == "" {
		return string(rik.InstancePending)
	}
	if s.Phase == rik.InstanceCreating && s.Reason != "" {
		return s.Reason
	}
	return string(s.Phase)
}

// trouble says why a container does not run although it should.
func trouble(c *rik.ContainerStatus) string {
	switch {
	case c.State == rik.ContainerWaiting:
		return c.Reason
	case c.State == rik.ContainerExited && c.ExitCode != nil && *c.ExitCode != 0:
		return c.Reason
	default:
		return ""
	}
}

// restarts counts like kubectl: init containers only while they run, and the other containers
// after that. Otherwise init containers that run again, such as after a reboot, would be added
// to the count.
func restarts(i *rik.Instance, now time.Time) string {
	list := i.Status.Containers
	if initializing(&i.Status) {
		list = i.Status.InitContainers
	}
	var count int32
	var last metav1.Time
	for c := range list {
		count += list[c].RestartCount
		if t := lastEnd(&list[c]); t != nil && list[c].RestartCount > 0 && t.After(last.Time) {
			last = *t
		}
	}
	if count == 0 || last.IsZero() {
		return fmt.Sprint(count)
	}
	return fmt.Sprintf("%d (%s ago)", count, store.Since(last, now))
}

// lastEnd returns when a container last ended, or nil if that is not known.
func lastEnd(c *rik.ContainerStatus) *metav1.Time {
	if c.FinishedAt == nil && c.LastState != nil {
		return c.LastState.FinishedAt
	}
	return c.FinishedAt
}

// initializing reports whether an init container has not succeeded yet.
func initializing(s *rik.InstanceStatus) bool {
	return slices.ContainsFunc(s.InitContainers, func(c rik.ContainerStatus) bool {
		return c.State != rik.ContainerExited || c.ExitCode == nil || *c.ExitCode != 0
	})
}

// digests shortens image digests to a part that distinguishes images.
func digests(i *rik.Instance) string {
	const enough = len("sha256:") + 12
	var out []string
	for c := range i.Status.Containers {
		if d := i.Status.Containers[c].ImageDigest; d != "" {
			out = append(out, d[:min(len(d), enough)])
		}
	}
	return store.Or(strings.Join(out, ","))
}
