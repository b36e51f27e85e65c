package syncer

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// owned is the set of fields that one manager owns. A client that changes a field takes over its
// ownership. A field that is still owned therefore has the value that was applied.
type owned struct{ set *fieldpath.Set }

// ownership returns the fields of a downstream object that this syncer owns.
func ownership(downstream *unstructured.Unstructured) owned {
	for _, entry := range downstream.GetManagedFields() {
		if isOurs(entry) {
			return ownedBy(entry)
		}
	}
	return owned{set: fieldpath.NewSet()}
}

func ownedBy(entry metav1.ManagedFieldsEntry) owned {
	set := fieldpath.NewSet()
	if entry.FieldsV1 != nil && set.FromJSON(entry.FieldsV1.GetRawReader()) != nil {
		set = fieldpath.NewSet() // not readable, so no field counts as owned
	}
	return owned{set: set}
}

func (o owned) owns(path []string) bool {
	p := make(fieldpath.Path, len(path))
	for i := range path {
		p[i] = fieldpath.PathElement{FieldName: &path[i]}
	}
	return o.set.Has(p)
}

// isInSync reports whether downstream has the value of desired in every field of desired, and
// whether this syncer owns exactly those fields. That means that no client has changed one of
// them, and that no field is left which upstream no longer sets.
//
// It does not use a schema. It may find a difference between equal values, such as a quantity
// that the server wrote in another format. The cost is one more apply. It never finds different
// values equal.
func isInSync(desired, downstream *unstructured.Unstructured) bool {
	ours := ownership(downstream).set
	want := ownable(desired)
	return covers(want, downstream.Object) && ownsAll(ours, want) && isAllIn(ours, want)
}

// ownable returns the fields of desired that have owners.
func ownable(desired *unstructured.Unstructured) map[string]any {
	want := map[string]any{}
	for field, v := range desired.Object {
		switch field {
		case "apiVersion", "kind":
		case "metadata":
			metadata := map[string]any{}
			for name, m := range v.(map[string]any) {
				if name == "labels" || name == "annotations" {
					metadata[name] = m
				}
			}
			want[field] = metadata
		default:
			want[field] = v
		}
	}
	return want
}

// covers reports whether every field of want is in have with the same value. Elements of lists
// may have more fields, and lists may have more elements. These are defaults or belong to other
// managers. The owner of a whole list determines whether another client has changed it.
func covers(want, have any) bool {
	switch w := want.(type) {
	case map[string]any:
		h, ok := have.(map[string]any)
		if !ok {
			return have == nil && len(w) == 0
		}
		for name, field := range w {
			has, found := h[name]
			if field == nil && !found || !covers(field, has) {
				return false
			}
		}
		return true
	case []any:
		h, _ := have.([]any)
		return coversList(w, h)
	default:
		return want == have
	}
}

// coversList matches the elements in order, and skips those that other managers added.
func coversList(want, have []any) bool {
	at := 0
	for _, w := range want {
		for at < len(have) && !covers(w, have[at]) {
			at++
		}
		if at == len(have) {
			return false
		}
		at++
	}
	return true
}

// ownsAll reports whether every leaf field of want is in the set.
func ownsAll(set *fieldpath.Set, want any) bool {
	switch w := want.(type) {
	case map[string]any:
		for name, field := range w {
			if !ownsElement(set, fieldpath.PathElement{FieldName: &name}, field) {
				return false
			}
		}
		return true
	case []any:
		for _, element := range w {
			pe, found := elementOf(set, element)
			if !found || !ownsElement(set, pe, element) {
				return false
			}
		}
		return true
	default:
		return true
	}
}

func ownsElement(set *fieldpath.Set, pe fieldpath.PathElement, v any) bool {
	children, deeper := set.Children.Get(pe)
	if deeper {
		return ownsAll(children, v)
	}
	return set.Members.Has(pe)
}

// elementOf returns the path element by which a set identifies an element of a list. It does not
// leave the loops early, because the library's sequences panic then.
func elementOf(set *fieldpath.Set, element any) (found fieldpath.PathElement, ok bool) {
	pick := func(pe fieldpath.PathElement) {
		if !ok && isElement(pe, element) {
			found, ok = pe, true
		}
	}
	set.Members.Iterate(pick)
	set.Children.Iterate(pick)
	return found, ok
}

func isElement(pe fieldpath.PathElement, element any) bool {
	switch {
	case pe.Value != nil:
		return value.Equals(*pe.Value, value.NewValueInterface(element))
	case pe.Key != nil:
		fields, ok := element.(map[string]any)
		if !ok {
			return false
		}
		for _, key := range *pe.Key {
			// If the key is missing, the server has set its default.
			if given, ok := fields[key.Name]; ok && !value.Equals(key.Value, value.NewValueInterface(given)) {
				return false
			}
		}
		return true
	}
	return false
}

// isAllIn reports whether every leaf field of the set is in want.
func isAllIn(set *fieldpath.Set, want any) bool {
	all := true
	set.Leaves().Iterate(func(path fieldpath.Path) {
		all = all && reaches(path, want)
	})
	return all
}

func reaches(path fieldpath.Path, from any) bool {
	if len(path) == 0 {
		return true
	}
	switch at := from.(type) {
	case map[string]any:
		if path[0].FieldName == nil {
			return false
		}
		field, found := at[*path[0].FieldName]
		return found && reaches(path[1:], field)
	case []any:
		for _, element := range at {
			if isElement(path[0], element) && reaches(path[1:], element) {
				return true
			}
		}
	}
	return false
}
