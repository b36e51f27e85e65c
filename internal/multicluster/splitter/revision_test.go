package splitter

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func read(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	integers(o.Object)
	return o
}

func TestDigest(t *testing.T) {
	t.Parallel()
	digest := func(text string) string {
		d, err := Digest(read(t, text), ScalePath{})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	root := digest(`{kind: Deployment, metadata: {name: web}, spec: {replicas: 3, template: {a: b}}, status: {replicas: 3}}`)
	for text, same := range map[string]bool{
		`{kind: Deployment, metadata: {name: web--east}, spec: {replicas: 1, template: {a: b}}}`: true,
		`{spec: {template: {a: b}}}`:                            true,
		`{spec: {replicas: 3, template: {a: c}}}`:               false,
		`{spec: {replicas: 3, template: {a: b}, paused: true}}`: false,
		`{spec: {replicas: 3, template: {a: b}}, data: {}}`:     false,
		`{spec: {replicas: 3}}`:                                 false,
		`{}`:                                                    false,
	} {
		if got := digest(text) == root; got != same {
			t.Errorf("%s has the digest of the root: %v, want %v", text, got, same)
		}
	}
	object := read(t, `{spec: {replicas: 3, template: {a: b}}}`)
	if _, err := Digest(object, ScalePath{}); err != nil || int32At(object, 0, []string{"spec", "replicas"}) != 3 {
		t.Errorf("Digest() changed the object: %v, %v", object, err)
	}
}

func TestProgressed(t *testing.T) {
	t.Parallel()
	const deployment = `{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 2}, spec: {replicas: 3}, status: `
	const failed = `conditions: [{type: Progressing, status: "False", reason: ProgressDeadlineExceeded}]`
	for text, want := range map[string][2]bool{
		deployment + `{observedGeneration: 2, updatedReplicas: 3, availableReplicas: 3}}`:                                                                                              {true, false},
		deployment + `{observedGeneration: 1, updatedReplicas: 3, availableReplicas: 3}}`:                                                                                              {false, false},
		deployment + `{observedGeneration: 2, updatedReplicas: 3, availableReplicas: 2}}`:                                                                                              {false, false},
		deployment + `{observedGeneration: 2, replicas: 3, readyReplicas: 3, availableReplicas: 3}}`:                                                                                   {false, false},
		deployment + `{observedGeneration: 2, replicas: 4, updatedReplicas: 3, availableReplicas: 3}}`:                                                                                 {false, false},
		deployment + `{observedGeneration: 2, replicas: 3, updatedReplicas: 3, availableReplicas: 3}}`:                                                                                 {true, false},
		deployment + `{observedGeneration: 2, ` + failed + `}}`:                                                                                                                        {false, true},
		deployment + `{observedGeneration: 1, ` + failed + `}}`:                                                                                                                        {false, false},
		deployment + `{observedGeneration: 2, updatedReplicas: 3, availableReplicas: 3, ` + failed + `}}`:                                                                              {false, true},
		`{apiVersion: apps/v1, kind: Deployment, spec: {replicas: 3}}`:                                                                                                                 {false, false},
		`{apiVersion: apps/v1, kind: Deployment, metadata: {generation: 1}, spec: {replicas: 0}, status: {observedGeneration: 1}}`:                                                     {true, false},
		`{apiVersion: apps/v1, kind: DaemonSet, metadata: {generation: 1}, status: {observedGeneration: 1, desiredNumberScheduled: 2, numberAvailable: 2}}`:                            {false, false},
		`{apiVersion: apps/v1, kind: DaemonSet, metadata: {generation: 1}, status: {observedGeneration: 1, desiredNumberScheduled: 2, updatedNumberScheduled: 2, numberAvailable: 2}}`: {true, false},
		`{apiVersion: rik.dev/v1alpha1, kind: Workload, metadata: {generation: 1}, spec: {replicas: 1}, status: {observedGeneration: 1, updatedReplicas: 1, readyReplicas: 1}}`:        {true, false},
		`{apiVersion: example.org/v1, kind: Thing, status: {conditions: [{type: Ready, status: "True"}]}}`:                                                                             {true, false},
		`{apiVersion: example.org/v1, kind: Thing, status: {conditions: [{type: Ready, status: "False"}]}}`:                                                                            {false, false},
		`{apiVersion: example.org/v1, kind: Thing}`:                                                                                                                                    {false, false},
	} {
		done, gaveUp := Progressed(read(t, text), ScalePath{})
		if got := [2]bool{done, gaveUp}; got != want {
			t.Errorf("Progressed(%s) = %v, want %v", text, got, want)
		}
	}
}
