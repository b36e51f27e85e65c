package terminal

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func parse(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(data); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestOf(t *testing.T) {
	t.Parallel()
	const at = "2026-01-02T03:04:05Z"
	for name, tc := range map[string]struct{ text, reason string }{
		"a new Job":         {"{apiVersion: batch/v1, kind: Job}", ""},
		"a running Job":     {"{apiVersion: batch/v1, kind: Job, status: {active: 1, conditions: [{type: Suspended, status: \"True\"}]}}", ""},
		"a Job that ends":   {"{apiVersion: batch/v1, kind: Job, status: {conditions: [{type: SuccessCriteriaMet, status: \"True\"}, {type: Complete, status: \"False\"}]}}", ""},
		"a complete Job":    {"{apiVersion: batch/v1, kind: Job, status: {conditions: [{type: SuccessCriteriaMet, status: \"True\"}, {type: Complete, status: \"True\", lastTransitionTime: \"" + at + "\"}]}}", "Complete"},
		"a failed Job":      {"{apiVersion: batch/v1, kind: Job, status: {conditions: [{type: Failed, status: \"True\"}]}}", "Failed"},
		"a broken status":   {"{apiVersion: batch/v1, kind: Job, status: {conditions: [7, {type: [Complete], status: \"True\"}]}}", ""},
		"a CronJob":         {"{apiVersion: batch/v1, kind: CronJob, status: {conditions: [{type: Complete, status: \"True\"}]}}", ""},
		"another Job":       {"{apiVersion: example.org/v1, kind: Job, status: {conditions: [{type: Complete, status: \"True\"}]}}", ""},
		"a running Pod":     {"{apiVersion: v1, kind: Pod, status: {phase: Running}}", ""},
		"a succeeded Pod":   {"{apiVersion: v1, kind: Pod, status: {phase: Succeeded}}", "Succeeded"},
		"a failed Pod":      {"{apiVersion: v1, kind: Pod, status: {phase: Failed}}", "Failed"},
		"an Instance":       {"{apiVersion: rik.dev/v1alpha1, kind: Instance, status: {phase: Running}}", ""},
		"a Completed one":   {"{apiVersion: rik.dev/v1alpha1, kind: Instance, status: {phase: Completed}}", "Completed"},
		"an available root": {"{apiVersion: apps/v1, kind: Deployment, status: {conditions: [{type: Complete, status: \"True\"}]}}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, finished := Of(parse(t, tc.text))
			if finished != (tc.reason != "") || got.Reason != tc.reason {
				t.Errorf("Of() = %+v, %v, want %q", got, finished, tc.reason)
			}
			if tc.reason == "Complete" && got.At.UTC().Format(time.RFC3339) != at {
				t.Errorf("it finished at %v, want %s", got.At, at)
			}
		})
	}
}

func TestExpires(t *testing.T) {
	t.Parallel()
	const done = "status: {conditions: [{type: Failed, status: \"True\", lastTransitionTime: \"2026-01-02T03:04:05Z\"}]}"
	const ahead = "status: {conditions: [{type: Failed, status: \"True\", lastTransitionTime: \"2027-01-02T03:04:05Z\"}]}"
	now := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct{ text, want string }{
		"a time to live":    {"{apiVersion: batch/v1, kind: Job, spec: {ttlSecondsAfterFinished: 60}, " + done + "}", "2026-01-02T03:05:05Z"},
		"none left":         {"{apiVersion: batch/v1, kind: Job, spec: {ttlSecondsAfterFinished: 0}, " + done + "}", "2026-01-02T03:04:05Z"},
		"a clock was ahead": {"{apiVersion: batch/v1, kind: Job, spec: {ttlSecondsAfterFinished: 60}, " + ahead + "}", "2026-06-01T00:01:00Z"},
		"no time to live":   {"{apiVersion: batch/v1, kind: Job, spec: {}, " + done + "}", ""},
		"it has not ended":  {"{apiVersion: batch/v1, kind: Job, spec: {ttlSecondsAfterFinished: 60}}", ""},
		"without a time":    {"{apiVersion: batch/v1, kind: Job, spec: {ttlSecondsAfterFinished: 60}, status: {conditions: [{type: Failed, status: \"True\"}]}}", ""},
		"another kind":      {"{apiVersion: batch/v1, kind: CronJob, spec: {ttlSecondsAfterFinished: 60}, " + done + "}", ""},
		"a negative time":   {"{apiVersion: batch/v1, kind: Job, spec: {ttlSecondsAfterFinished: -1}, " + done + "}", ""},
		"an endless one":    {"{apiVersion: batch/v1, kind: Job, spec: {ttlSecondsAfterFinished: 9223372036854775807}, " + done + "}", "2125-12-09T03:04:05Z"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at, ok := Expires(parse(t, tc.text), now)
			if got := at.UTC().Format(time.RFC3339); ok != (tc.want != "") || ok && got != tc.want {
				t.Errorf("Expires() = %s, %v, want %q", got, ok, tc.want)
			}
		})
	}
}
