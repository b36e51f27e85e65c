package v0

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/testkit/golden"
)

func decodeFile(t *testing.T, path string) *Definition {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !Matches(data) {
		t.Fatalf("Matches(%s) = false, want true", path)
	}
	d, err := Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConversionGolden(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"pod.json", "minimal.json", "function.yaml"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := decodeFile(t, filepath.Join("testdata", name))
			w, errs := ToWorkload(d, "default")
			if len(errs) > 0 {
				t.Fatal(errs.ToAggregate())
			}
			out, err := yaml.Marshal(w)
			if err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, name+".workload.golden", out)

			back, err := json.MarshalIndent(FromWorkload(w), "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, name+".back.golden", append(back, '\n'))
		})
	}
}

func TestInstanceGolden(t *testing.T) {
	t.Parallel()
	w, errs := ToWorkload(decodeFile(t, "testdata/pod.json"), "default")
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	i := &rikv1alpha1.Instance{
		ObjectMeta: metav1.ObjectMeta{Name: "calm-otter-4242", Namespace: "default"},
		Status:     rikv1alpha1.InstanceStatus{Phase: rikv1alpha1.InstanceRunning},
	}
	out, err := json.MarshalIndent(
		FromInstance(i, &w.Spec.InstanceTemplate, "0e4c1da4-0277-4088-9f37-8f445cbe8e46", "calm-otter-4242"), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "instance.golden", append(out, '\n'))
}

func TestDecodeErrors(t *testing.T) {
	t.Parallel()
	const head = `{"apiVersion":"v0","kind":"Pod","name":"a",`
	tests := []struct{ name, document, want string }{
		{"unknown at the top", head + `"replica":1,"spec":{"containers":[]}}`, `unknown field "replica"`},
		{"unknown in a container", head + `"spec":{"containers":[{"name":"a","image":"b","imagee":"c"}]}}`,
			`unknown field "spec.containers[0].imagee"`},
		{"unknown in a port object", head + `"spec":{"containers":[{"name":"a","image":"b","ports":{"port":1,"targetPort":2}}]}}`,
			`unknown field "spec.containers[0].ports.targetPort"`},
		{"unknown in a port list", head + `"spec":{"containers":[{"name":"a","image":"b","ports":[{"port":1},{"prt":2}]}]}}`,
			`unknown field "spec.containers[0].ports[1].prt"`},
		{"case matters", head + `"Spec":{"containers":[]}}`, `unknown field "Spec"`},
		{"twice the same key", head + `"name":"b","spec":{"containers":[]}}`, `duplicate field "name"`},
		{"wrong type", head + `"replicas":"three","spec":{"containers":[]}}`, `replicas: Invalid value: "three": must be a whole number`},
		{"text in a port", head + `"spec":{"containers":[{"name":"a","image":"b","ports":{"port":"http"}}]}}`,
			`spec.containers[0].ports.port: Invalid value: "http": must be a whole number`},
		{"number too large", head + `"replicas":4294967297,"spec":{"containers":[]}}`, "4294967297"},
		{"not a document", `[1,2]`, "document: Invalid value: [1,2]: must be an object"},
		{"not YAML", "a: [", "decoding workload definition"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := Decode([]byte(tc.document))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Decode(%s) = %v, want an error with %q", tc.document, err, tc.want)
			}
		})
	}
}

func TestToWorkloadErrors(t *testing.T) {
	t.Parallel()
	web := Container{Name: "web", Image: "web"}
	tests := []struct {
		name string
		give Definition
		want []string
	}{
		{"version, kind and name", Definition{APIVersion: "v2", Kind: "App"}, []string{"apiVersion", "name", "kind"}},
		{"pod without containers", Definition{APIVersion: "v0", Kind: KindPod, Name: "a"}, []string{"spec.containers"}},
		{"pod with a function", Definition{APIVersion: "v0", Kind: KindPod, Name: "a",
			Spec: Spec{Containers: []Container{web}, Function: &Function{Execution: Execution{Rootfs: "x"}}}},
			[]string{"spec.function"}},
		{"function with containers and nothing to execute", Definition{APIVersion: "v0", Kind: KindFunction, Name: "a",
			Spec: Spec{Containers: []Container{web}, Function: &Function{}}},
			[]string{"spec.containers", "spec.function.execution.rootfs"}},
		{"function without a function", Definition{APIVersion: "v0", Kind: KindFunction, Name: "a"}, []string{"spec.function"}},
		{"words of a single port", Definition{APIVersion: "v0", Kind: KindPod, Name: "a", Spec: Spec{Containers: []Container{
			{Name: "web", Image: "web", Ports: Ports{{Port: 1, Protocol: "icmp", Type: "clusterIP|nodePort"}}}}}},
			[]string{"spec.containers[0].ports.protocol", "spec.containers[0].ports.type"}},
		{"words of a port list", Definition{APIVersion: "v0", Kind: KindPod, Name: "a", Spec: Spec{Containers: []Container{
			{Name: "web", Image: "web", Ports: Ports{{Port: 1}, {Port: 2, Type: "open"}}}}}},
			[]string{"spec.containers[0].ports[1].type"}},
		{"exposure type", Definition{APIVersion: "v0", Kind: KindFunction, Name: "a",
			Spec: Spec{Function: &Function{Execution: Execution{Rootfs: "x"}, Exposure: &Exposure{Port: 1, Type: "all"}}}},
			[]string{"spec.function.exposure.type"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, errs := ToWorkload(&tc.give, "default")
			var paths []string
			for _, e := range errs {
				paths = append(paths, e.Field)
			}
			if diff := cmp.Diff(tc.want, paths); diff != "" {
				t.Errorf("ToWorkload paths (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMatches(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		document string
		want     bool
	}{
		"published":       {`{"apiVersion":"v1","kind":"Pod","name":"a","spec":{}}`, true},
		"name forgotten":  {`{"apiVersion":"v0","kind":"Function","spec":{}}`, true},
		"Kubernetes' Pod": {`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{}}`, false},
		"of today":        {"apiVersion: rik.dev/v1alpha1\nkind: Workload\nmetadata: {name: a}\n", false},
		"ConfigMap":       {"apiVersion: v1\nkind: ConfigMap\nname: a\n", false},
		"no document":     {"a: [", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Matches([]byte(tc.document)); got != tc.want {
				t.Errorf("Matches(%s) = %v, want %v", tc.document, got, tc.want)
			}
		})
	}
}

func TestStatusOf(t *testing.T) {
	t.Parallel()
	want := map[rikv1alpha1.InstancePhase]Status{
		"":                             StatusPending,
		rikv1alpha1.InstancePending:    StatusPending,
		rikv1alpha1.InstanceCreating:   StatusCreating,
		rikv1alpha1.InstanceRunning:    StatusRunning,
		rikv1alpha1.InstanceCompleted:  StatusTerminated,
		rikv1alpha1.InstanceFailed:     StatusFailed,
		rikv1alpha1.InstanceDestroying: StatusDestroying,
		rikv1alpha1.InstanceTerminated: StatusTerminated,
		rikv1alpha1.InstanceUnknown:    StatusUnknown,
	}
	for phase, status := range want {
		if got := StatusOf(phase); got != status {
			t.Errorf("StatusOf(%q) = %q, want %q", phase, got, status)
		}
	}
}

// TestNothingIsDropped converts a random definition to JSON, to a Workload and back, and expects
// the same definition.
func TestNothingIsDropped(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := drawDefinition(t)
		data, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		decoded, err := Decode(data)
		if err != nil {
			t.Fatalf("Decode(%s): %v", data, err)
		}
		w, errs := ToWorkload(decoded, "default")
		if len(errs) > 0 {
			t.Fatal(errs.ToAggregate())
		}
		if diff := cmp.Diff(want, FromWorkload(w)); diff != "" {
			t.Errorf("round trip (-want +got):\n%s", diff)
		}
	})
}

func drawDefinition(t *rapid.T) Definition {
	name := rapid.StringMatching(`[a-z][a-z0-9-]{0,8}[a-z0-9]`)
	replicas := rapid.Int32Min(0).Draw(t, "replicas")
	d := Definition{
		APIVersion: rapid.SampledFrom([]string{"v0", "v1"}).Draw(t, "version"),
		Kind:       rapid.SampledFrom([]Kind{KindPod, KindFunction}).Draw(t, "kind"),
		Name:       name.Draw(t, "name"),
		Replicas:   &replicas,
		Spec:       Spec{Containers: []Container{}},
	}
	number := rapid.Int32Range(1, 65535)
	if d.Kind == KindFunction {
		d.Spec.Function = &Function{Execution: Execution{Rootfs: "https://" + name.Draw(t, "rootfs")}}
		if rapid.Bool().Draw(t, "exposed") {
			d.Spec.Function.Exposure = &Exposure{Port: number.Draw(t, "port"), TargetPort: number.Draw(t, "target"),
				Type: rapid.SampledFrom([]string{"NodePort", "clusterIP", "loadBalancer"}).Draw(t, "type")}
		}
		return d
	}
	for range rapid.IntRange(1, 3).Draw(t, "containers") {
		c := Container{Name: name.Draw(t, "container"), Image: name.Draw(t, "image")}
		for range rapid.IntRange(0, 2).Draw(t, "variables") {
			c.Env = append(c.Env, EnvVar{Name: name.Draw(t, "variable"), Value: rapid.String().Draw(t, "value")})
		}
		for range rapid.IntRange(0, 3).Draw(t, "ports") {
			c.Ports = append(c.Ports, Port{Port: number.Draw(t, "port"), TargetPort: number.Draw(t, "target"),
				Protocol: rapid.SampledFrom([]string{"", "TCP", "UDP", "SCTP"}).Draw(t, "protocol"),
				Type:     rapid.SampledFrom([]string{"clusterIP", "nodePort", "loadBalancer"}).Draw(t, "type")})
		}
		d.Spec.Containers = append(d.Spec.Containers, c)
	}
	return d
}
