// Package fence reads the fence of an object. A fence stops instances when their cluster has lost
// the kcp. The controller and the nodes act on it independently.
package fence

import "time"

// Annotation sets a fence on a Workload or on the template of its instances. Its value is the time
// after the last contact to the kcp at which the instances must stop.
const Annotation = "workloads.kcp.dev/fence-after"

// Shortest is the shortest fence. It also replaces shorter values and values that are not a
// duration.
const Shortest = 10 * time.Second

// After returns the fence that annotations set, or false if they set none.
func After(annotations map[string]string) (time.Duration, bool) {
	value := annotations[Annotation]
	if value == "" {
		return 0, false
	}
	after, err := time.ParseDuration(value)
	if err != nil {
		return Shortest, true
	}
	return max(after, Shortest), true
}
