// Package fence reads how an object asks to be stopped when the kcp that it came from is
// not in touch with its cluster. The controller and the nodes act on it, each by itself.
package fence

import "time"

// Annotation on a Workload, and on the template of its instances, asks for a fence: from so
// long after the kcp was last in touch, nothing of it runs.
const Annotation = "workloads.kcp.dev/fence-after"

// Shortest is the shortest fence. What asks for a shorter one, or for one that cannot be
// read, has this.
const Shortest = 10 * time.Second

// After is the fence that annotations ask for. It is false if they ask for none.
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
