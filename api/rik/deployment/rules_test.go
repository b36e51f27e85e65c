package deployment

import (
	"reflect"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
)

// TestEveryFieldHasARule checks all types of a Deployment in this version of Kubernetes. Each of
// their fields must have a rule, so that none is ignored.
func TestEveryFieldHasARule(t *testing.T) {
	t.Parallel()
	w := walker{T: t, seen: map[reflect.Type]bool{}}
	w.walk(reflect.TypeFor[appsv1.DeploymentSpec]())
	for of := range rules {
		if !w.seen[of] {
			t.Errorf("there are rules for %s, which no honored field has", of)
		}
	}
	if len(w.seen) < 30 {
		t.Errorf("the walk saw %d types only", len(w.seen))
	}
}

type walker struct {
	*testing.T
	seen map[reflect.Type]bool
}

func (w walker) walk(of reflect.Type) {
	switch of.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		w.walk(of.Elem())
		return
	case reflect.Struct:
	default:
		return
	}
	if w.seen[of] || slices.Contains(wholes, of) {
		return
	}
	w.seen[of] = true
	table, known := rules[of]
	if !known {
		w.Errorf("there are no rules for %s", of)
		return
	}
	for i := range of.NumField() {
		f := of.Field(i)
		r, known := table[f.Name]
		switch {
		case !known:
			w.Errorf("there is no rule for %s.%s", of, f.Name)
		case r.honored:
			w.walk(f.Type)
		case r.advice == "" && r.allows == nil:
			w.Errorf("%s.%s is refused without advice", of, f.Name)
		}
	}
	for name := range table {
		if _, known := of.FieldByName(name); !known {
			w.Errorf("there is a rule for %s.%s, which does not exist", of, name)
		}
	}
}
