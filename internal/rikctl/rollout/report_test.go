package rollout

import (
	"strings"
	"testing"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// A rollout without progress repeats its state and says what its instances wait for.
func TestARolloutIsNotSilent(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	lines := []string{"  instance web-1 is Creating: container web waits: ImagePullFailed: the registry is away"}
	r := &rolloutReport{out: &out, troubles: func(*rikv1alpha1.Workload) []string { return lines }}
	r.reminder() // no state was seen yet
	r.saw(&rikv1alpha1.Workload{}, progress{message: "0 of 1 instances are ready"})
	r.saw(&rikv1alpha1.Workload{}, progress{message: "0 of 1 instances are ready"})
	r.reminder()
	lines = nil
	r.reminder()
	r.saw(&rikv1alpha1.Workload{}, progress{message: "1 of 1 instances are ready"})
	r.reminder() // the state was just printed
	want := "0 of 1 instances are ready\nstill 0 of 1 instances are ready\n  instance web-1 is Creating: container web waits: ImagePullFailed: the registry is away\n" +
		"still 0 of 1 instances are ready\n1 of 1 instances are ready\n"
	if out.String() != want {
		t.Errorf("printed\n%swant\n%s", out.String(), want)
	}
	stop := r.remind(time.Hour)
	stop()
}
