package quantity

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestCheckJSON(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ document, path string }{
		"small":                  {`{"spec":{"limits":{"cpu":"1e3","memory":1e9}}}`, ""},
		"a text":                 {`{"spec":{"limits":{"cpu":"1e-999999999"}}}`, "spec.limits.cpu"},
		"upper case":             {`{"spec":{"limits":{"cpu":"1E100"}}}`, "spec.limits.cpu"},
		"a number":               {`{"spec":{"hard":{"pods":1.5e999999999}}}`, "spec.hard.pods"},
		"with spaces":            {`{"limits":{"cpu":" +1.e9999 "}}`, "limits.cpu"},
		"beyond 64 bits":         {`{"limits":{"cpu":"1e99999999999999999999999"}}`, "limits.cpu"},
		"in a list":              {`{"containers":[{"name":"a"},{"limits":{"cpu":"1e-100"}}]}`, "containers.limits.cpu"},
		"escaped":                {`{"limits":{"cpu":"1\u0065-999999"}}`, "limits.cpu"},
		"given twice":            {`{"limits":{"cpu":"1e-999999","cpu":"1"}}`, "limits.cpu"},
		"before the end is cut":  {`{"limits":{"cpu":"1e-999999"`, "limits.cpu"},
		"after a second begins":  {`{} {"limits":{"cpu":"1e-999999"}}`, "limits.cpu"},
		"a label":                {`{"metadata":{"labels":{"commit":"1234e56789"}},"spec":{"selector":{"commit":"1234e56789"}}}`, ""},
		"a variable":             {`{"env":[{"name":"COMMIT","value":"1234e56789"}]}`, ""},
		"the unit of a variable": {`{"env":[{"valueFrom":{"resourceFieldRef":{"divisor":"1e-99999"}}}]}`, "env.valueFrom.resourceFieldRef.divisor"},
		"a resource like a text": {`{"limits":{"data":"1e-99999"}}`, "limits.data"},
		"in another case":        {`{"Limits":{"data":"1e-99999"}}`, "Limits.data"},
		"a label like a map":     {`{"metadata":{"labels":{"limits":"1234e56789"}}}`, ""},
		"a digest":               {`{"image":"sha256:1e999abc"}`, ""},
		"a word":                 {`{"image":"e999","name":"v1e999x"}`, ""},
		"no JSON":                {`{1e-999999`, ""},
	} {
		check(t, name, CheckJSON([]byte(tc.document)), tc.path)
	}
}

func check(t *testing.T, name string, err error, path string) {
	t.Helper()
	var refused *Error
	switch {
	case path == "" && err != nil:
		t.Errorf("%s: %v, want nothing", name, err)
	case path != "" && (!errors.As(err, &refused) || refused.Path != path || !strings.Contains(err.Error(), "exponent")):
		t.Errorf("%s: %v, want an error at %s", name, err, path)
	}
}

func TestCheckPatch(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ document, path string }{
		"a value":               {`[{"op":"add","path":"/spec/limits/cpu","value":"1e-999999"}]`, "spec.limits.cpu"},
		"inside a value":        {`[{"value":[{"limits":{"cpu":"1e-999999"}}],"op":"add","path":"/spec/containers/0"}]`, "spec.containers.limits.cpu"},
		"a label":               {`[{"op":"add","path":"/metadata/labels/commit","value":"1234e56789"}]`, ""},
		"a label as a quantity": {`[{"op":"copy","from":"/metadata/labels/commit","path":"/spec/limits/cpu"}]`, "spec.limits.cpu"},
		"a variable as a list":  {`[{"op":"copy","from":"/spec/containers/0/env/0","path":"/spec/containers/0/resources/limits"}]`, "spec.containers.resources.limits"},
		"a list as another":     {`[{"op":"copy","from":"/spec/resources/limits","path":"/spec/resources/requests"}]`, ""},
		"a label as a label":    {`[{"op":"copy","from":"/metadata/labels/a","path":"/metadata/labels/b"}]`, ""},
		"a container":           {`[{"op":"move","from":"/spec/containers/0","path":"/spec/containers/1"}]`, ""},
	} {
		check(t, name, CheckPatch([]byte(tc.document)), tc.path)
	}
}

func TestCheckProtobuf(t *testing.T) {
	t.Parallel()
	object := func(cpu, label string) []byte {
		// Not every quantity can be written: one of the same length is put in its place.
		placeholder := strings.Repeat("7", len(cpu))
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"commit": label}}}
		pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(placeholder)},
		}}}
		data, err := pod.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return []byte("k8s\x00" + strings.Replace(string(data), placeholder, cpu, 1))
	}
	if err := CheckProtobuf(object("1e10", "1234e56789")); err != nil {
		t.Errorf("a label: %v, want nothing", err)
	}
	var refused *Error
	if err := CheckProtobuf(object("1e-9999", "x")); !errors.As(err, &refused) || refused.Value != "1e-9999" {
		t.Errorf("a quantity: %v, want an error", err)
	}
}

func FuzzCheckJSON(f *testing.F) {
	f.Add([]byte(`{"limits":{"cpu":"1e-999999"}}`))
	f.Fuzz(func(_ *testing.T, document []byte) {
		_ = CheckJSON(document)
		_ = CheckPatch(document)
		_ = CheckProtobuf(document)
	})
}
