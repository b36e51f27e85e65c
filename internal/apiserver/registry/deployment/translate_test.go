package deployment

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	translation "rik.dev/rik/api/rik/deployment"
	"rik.dev/rik/internal/apiserver/apis/rik/install"
	"rik.dev/rik/internal/testkit/golden"
)

// init fills the scheme, which has no lock, before any test runs.
func init() { install.Install(legacyscheme.Scheme) }

// read returns a Deployment as the API server stores it, with defaults.
func read(t testing.TB, file string) *appsv1.Deployment {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict(text, &d); err != nil {
		t.Fatal(err)
	}
	legacyscheme.Scheme.Default(&d)
	return &d
}

// validateOf returns the server's errors for a new Deployment.
func validateOf(t testing.TB, d *appsv1.Deployment) []string {
	t.Helper()
	var hub apps.Deployment
	if err := legacyscheme.Scheme.Convert(d, &hub, nil); err != nil {
		t.Fatal(err)
	}
	if hub.Namespace == "" {
		hub.Namespace = "default"
	}
	var out []string
	for _, e := range ours.Validate(t.Context(), &hub) {
		out = append(out, e.Error())
	}
	return out
}

// TestGolden compares the translations of Deployments with golden files.
func TestGolden(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"full", "create", "recreate"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := read(t, name+".yaml")
			if errs := validateOf(t, d); len(errs) > 0 {
				t.Fatalf("refused: %s", strings.Join(errs, "\n"))
			}
			got, err := yaml.Marshal(translation.Workload(d))
			if err != nil {
				t.Fatal(err)
			}
			golden.Compare(t, name+".workload.yaml", got)
		})
	}
}

// spoken are the honored fields that do not appear in a Workload. The first three belong to the
// Deployment, and the others only state what is always true.
var spoken = map[string]bool{
	"DeploymentSpec.Selector": true, "TopologySpreadConstraint.LabelSelector": true, "ObjectFieldSelector.APIVersion": true,
	"PodSpec.ServiceAccountName": true, "PodSpec.DeprecatedServiceAccount": true, "PodSpec.AutomountServiceAccountToken": true,
	"PodOS.Name": true, "SecurityContext.AllowPrivilegeEscalation": true, "PodSecurityContext.RunAsNonRoot": true,
}

// TestNothingIsDropped changes each value of a Deployment that has all fields, one at a time.
// Either its Workload changes too, or the Deployment is refused.
func TestNothingIsDropped(t *testing.T) {
	t.Parallel()
	before := read(t, "full.yaml")
	plain := translation.Workload(before)
	var changes int
	for _, leaf := range leaves(reflect.ValueOf(&before.Spec).Elem(), "DeploymentSpec", "spec") {
		if spoken[leaf.name] {
			continue
		}
		changes++
		d := before.DeepCopy()
		leaf.change(reflect.ValueOf(&d.Spec).Elem())
		same := equality.Semantic.DeepEqual(plain, translation.Workload(d))
		if same && len(translation.Validate(d)) == 0 {
			t.Errorf("a change of %s (%s) is dropped", leaf.path, leaf.name)
		}
	}
	if changes < 100 {
		t.Errorf("%d values were changed, want all of some 150", changes)
	}
}

// leaf is one value in a struct, with a function to find it in a copy.
type leaf struct {
	name, path string
	find       func(reflect.Value) reflect.Value
}

func (l leaf) change(root reflect.Value) {
	v := l.find(root)
	switch x := v.Addr().Interface().(type) {
	case *resource.Quantity:
		x.Add(*x)
		return
	case *intstr.IntOrString:
		*x = intstr.FromInt32(17)
		return
	case *appsv1.DeploymentStrategyType:
		*x = appsv1.RecreateDeploymentStrategyType
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int32, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Map:
		for _, key := range v.MapKeys() {
			v.SetMapIndex(key, reflect.Value{})
		}
	}
}

func leaves(v reflect.Value, name, path string) []leaf {
	self := func(root reflect.Value) reflect.Value { return root }
	switch v.Interface().(type) {
	case resource.Quantity, intstr.IntOrString:
		return []leaf{{name, path, self}}
	case metav1.Time:
		return nil
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return under(leaves(v.Elem(), name, path), func(root reflect.Value) reflect.Value { return root.Elem() })
	case reflect.Slice:
		var out []leaf
		for i := range v.Len() {
			out = append(out, under(leaves(v.Index(i), name, fmt.Sprintf("%s[%d]", path, i)), func(root reflect.Value) reflect.Value { return root.Index(i) })...)
		}
		return out
	case reflect.Struct:
		var out []leaf
		for i := range v.NumField() {
			f := v.Type().Field(i)
			out = append(out, under(leaves(v.Field(i), v.Type().Name()+"."+f.Name, path+"."+f.Name), func(root reflect.Value) reflect.Value { return root.Field(i) })...)
		}
		return out
	}
	if v.IsZero() {
		return nil
	}
	return []leaf{{name, path, self}}
}

func under(inner []leaf, step func(reflect.Value) reflect.Value) []leaf {
	for i := range inner {
		find := inner[i].find
		inner[i].find = func(root reflect.Value) reflect.Value { return find(step(root)) }
	}
	return inner
}

// TestStoredAsTranslated: for any subset of the fields of a full Deployment, the stored
// Workload equals the controller's translation. Otherwise the controller would write it again
// without end.
func TestStoredAsTranslated(t *testing.T) {
	t.Parallel()
	full := read(t, "full.yaml")
	accepted := 0
	rapid.Check(t, func(t *rapid.T) {
		d := full.DeepCopy()
		prune(t, reflect.ValueOf(&d.Spec).Elem())
		legacyscheme.Scheme.Default(d)
		w := translation.Workload(d)
		if again := translation.Workload(d.DeepCopy()); !equality.Semantic.DeepEqual(w, again) {
			t.Fatalf("translated twice: %s", cmp.Diff(w, again))
		}
		if len(translation.Validate(d)) > 0 {
			return
		}
		accepted++
		stored := w.DeepCopy()
		legacyscheme.Scheme.Default(stored)
		if !equality.Semantic.DeepEqual(w, stored) {
			t.Fatalf("storing changes it (-made +stored):\n%s", cmp.Diff(w, stored))
		}
		next, changed := translation.Changed(stored, w, equality.Semantic.DeepEqual)
		if changed {
			t.Fatalf("it would be written again (-stored +next):\n%s", cmp.Diff(stored, next))
		}
	})
	if accepted == 0 {
		t.Error("no Deployment was accepted")
	}
}

// prune drops some fields.
func prune(t *rapid.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			prune(t, v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			prune(t, v.Index(i))
		}
	case reflect.Struct:
		switch v.Interface().(type) {
		case resource.Quantity, metav1.Time:
			return
		}
		for i := range v.NumField() {
			f := v.Field(i)
			if optional(v.Type().Field(i)) && !f.IsZero() && rapid.IntRange(0, 9).Draw(t, v.Type().Field(i).Name) == 0 {
				f.SetZero()
				continue
			}
			prune(t, f)
		}
	}
}

// optional reports whether JSON omits the field if it is empty.
func optional(f reflect.StructField) bool { return strings.Contains(f.Tag.Get("json"), "omitempty") }
