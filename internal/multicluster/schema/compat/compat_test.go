package compat_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rik.dev/rik/internal/multicluster/schema/compat"
)

// widgets returns a CRD. Each version is a line such as "v1 served storage integer".
func widgets(t *testing.T, versions ...string) compat.Input {
	t.Helper()
	var b strings.Builder
	b.WriteString(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.dev}
spec:
  group: example.dev
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  versions:
`)
	for _, version := range versions {
		parts := strings.Fields(version)
		is := func(word string) string {
			if strings.Contains(version, word) {
				return "true"
			}
			return "false"
		}
		b.WriteString("  - {name: " + parts[0] + ", served: " + is(" served") + ", storage: " + is(" storage") +
			", schema: {openAPIV3Schema: {type: object, properties: {spec: {type: " + parts[len(parts)-1] + "}}}}}\n")
	}
	crd, err := compat.Read(strings.NewReader(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	return compat.Input{File: "widgets.yaml", CRD: crd}
}

// TestVersions tests what the versions of two CRDs mean for the result. A field that differs is left
// out of the LCD. A version that differs is not in it.
func TestVersions(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		before, after []string
		compatible    bool
		want          map[string]compat.Verdict
		lcd           bool
	}{
		"the same":             {[]string{"v1 served storage integer"}, []string{"v1 served storage integer"}, true, map[string]compat.Verdict{"v1": compat.Compatible}, true},
		"wider":                {[]string{"v1 served storage integer"}, []string{"v1 served storage number"}, true, map[string]compat.Verdict{"v1": compat.Compatible}, true},
		"another type":         {[]string{"v1 served storage integer"}, []string{"v1 served storage string"}, false, map[string]compat.Verdict{"v1": compat.Incompatible}, true},
		"a new version":        {[]string{"v1 served storage integer"}, []string{"v1 served integer", "v2 served storage string"}, true, map[string]compat.Verdict{"v1": compat.Compatible, "v2": compat.Added}, true},
		"no longer served":     {[]string{"v1 served integer", "v2 served storage integer"}, []string{"v1 integer", "v2 served storage integer"}, false, map[string]compat.Verdict{"v1": compat.Removed, "v2": compat.Compatible}, true},
		"storage is gone":      {[]string{"v1 storage integer", "v2 served integer"}, []string{"v2 served storage integer"}, false, map[string]compat.Verdict{"v1": compat.Removed, "v2": compat.Compatible}, true},
		"storage is unserved":  {[]string{"v1 storage integer", "v2 served integer"}, []string{"v1 integer", "v2 served storage integer"}, true, map[string]compat.Verdict{"v2": compat.Compatible}, true},
		"no version is common": {[]string{"v1 served storage integer"}, []string{"v2 served storage integer"}, false, map[string]compat.Verdict{"v1": compat.Removed, "v2": compat.Added}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before, after := widgets(t, tc.before...), widgets(t, tc.after...)
			r, err := compat.Compare(before, after)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]compat.Verdict{}
			for _, v := range r.Versions {
				got[v.Name] = v.Verdict
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || *r.Compatible != tc.compatible {
				t.Errorf("compatible = %v, want %v (-want +got):\n%s", *r.Compatible, tc.compatible, diff)
			}
			m, err := compat.Meet(before, after)
			if err != nil || (m.LCD != nil) != tc.lcd {
				t.Errorf("Meet = %v, %v, want a CRD: %v", m.LCD, err, tc.lcd)
			}
		})
	}
}

// TestNotComparable tests inputs that give no report.
func TestNotComparable(t *testing.T) {
	t.Parallel()
	v1 := widgets(t, "v1 served storage integer")
	other := widgets(t, "v1 served storage integer")
	other.CRD.Spec.Names.Kind = "Gadget"
	unserved := widgets(t, "v1 storage integer")
	for name, after := range map[string]compat.Input{"another kind": other, "no version is served": unserved} {
		if r, err := compat.Compare(v1, after); err == nil {
			t.Errorf("%s: Compare = %+v, want an error", name, r)
		}
		if r, err := compat.Meet(v1, after); err == nil {
			t.Errorf("%s: Meet = %+v, want an error", name, r)
		}
	}
}
