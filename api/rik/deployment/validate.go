package deployment

import (
	"reflect"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validate returns an error for each field of a Deployment that rik does not honor, with its path
// and advice. It accepts the default values of Kubernetes.
func Validate(d *appsv1.Deployment) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validate(reflect.ValueOf(&d.Spec), spec)
	return append(errs, validatePod(d, spec.Child("template", "spec"))...)
}

// validate applies the rules to all fields of a value that are set. It rejects fields without a
// rule, which a later version of Kubernetes can add.
func validate(v reflect.Value, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			errs = validate(v.Elem(), at)
		}
	case reflect.Slice:
		for i := range v.Len() {
			errs = append(errs, validate(v.Index(i), at.Index(i))...)
		}
	case reflect.Struct:
		if table, known := rules[v.Type()]; known {
			errs = validateFields(v, table, at)
		}
	}
	return errs
}

func validateFields(v reflect.Value, table map[string]rule, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range v.NumField() {
		f := v.Type().Field(i)
		value, here := v.Field(i), child(at, f)
		if unset(value) {
			continue
		}
		r, known := table[f.Name]
		switch {
		case !known:
			errs = append(errs, field.Forbidden(here, "this version of rik does not know it: leave it out"))
		case r.honored:
			errs = append(errs, validate(value, here)...)
		case r.allows == nil || !r.allows(present(value)):
			errs = append(errs, field.Forbidden(here, r.advice))
		}
	}
	return errs
}

// child returns the path of a field. An embedded struct has no path of its own.
func child(at *field.Path, f reflect.StructField) *field.Path {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if name == "" {
		return at
	}
	return at.Child(name)
}

func unset(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	}
	return v.IsZero()
}

// present returns a value, or the target of a pointer that is set.
func present(v reflect.Value) any {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	return v.Interface()
}
