package validation

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
)

// largest has amounts that no machine has. A larger amount is probably a wrong unit.
var largest = rikv1alpha1.LargestResources()

// The smallest limits that the kernel accepts and with which a program can start.
var (
	smallestCPU    = resource.MustParse("10m") // a quota of 1 ms in a period of 100 ms
	smallestMemory = resource.MustParse("4Mi")
)

func resources(at *field.Path, r *rik.Resources) field.ErrorList {
	errs := amounts(at.Child("requests"), r.Requests, rik.ResourceCPU, rik.ResourceMemory, rik.ResourceDisk)
	errs = append(errs, amounts(at.Child("limits"), r.Limits, rik.ResourceCPU, rik.ResourceMemory)...)
	for name, least := range map[rik.ResourceName]resource.Quantity{rik.ResourceCPU: smallestCPU, rik.ResourceMemory: smallestMemory} {
		limit, ok := r.Limits[name]
		if ok {
			errs = append(errs, atLeast(at.Child("limits").Key(string(name)), limit, least, "")...)
		}
		request, asked := r.Requests[name]
		if ok && asked && request.Cmp(limit) > 0 {
			errs = append(errs, field.Invalid(at.Child("requests").Key(string(name)), request.String(), "must not exceed the limit of "+limit.String()))
		}
	}
	return errs
}

// atLeast rejects an amount below least. It takes both by value, because Quantity.String caches its
// text in the Quantity and all requests share the limits.
func atLeast(at *field.Path, amount, least resource.Quantity, why string) field.ErrorList {
	if amount.Cmp(least) >= 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(at, amount.String(), "must be at least "+least.String()+why)}
}

// amounts validates the quantities of resources. The resources must be in known.
func amounts(at *field.Path, list rik.ResourceList, known ...rik.ResourceName) field.ErrorList {
	var errs field.ErrorList
	names := make([]rik.ResourceName, 0, len(list))
	for name := range list {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		here, q := at.Key(string(name)), list[name]
		if !slices.Contains(known, name) {
			errs = append(errs, field.NotSupported(here, name, known))
			continue
		}
		errs = append(errs, amount(here, name, q)...)
	}
	return errs
}

func amount(at *field.Path, name rik.ResourceName, q resource.Quantity) field.ErrorList {
	most := largest[rikv1alpha1.ResourceName(name)]
	switch {
	case q.Sign() < 0:
		return field.ErrorList{field.Invalid(at, q.String(), "must not be negative")}
	case q.Cmp(most) > 0:
		return field.ErrorList{field.Invalid(at, q.String(), "must be at most "+most.String())}
	}
	scale := resource.Scale(0)
	if name == rik.ResourceCPU {
		scale = resource.Milli
	}
	if rounded := q.DeepCopy(); !rounded.RoundUp(scale) {
		if name == rik.ResourceCPU {
			return field.ErrorList{field.Invalid(at, q.String(), "must be a multiple of 1m (a thousandth of a core)")}
		}
		return field.ErrorList{field.Invalid(at, q.String(), "must be a whole number (the suffix m means thousandths; use M or Mi for mega)")}
	}
	return nil
}
