package syncer

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// owned is the set of fields that one manager owns. Whoever changes a field takes it
// from its owner, so that a field which is still owned has the value that was applied.
type owned struct{ set *fieldpath.Set }

// ownership is what we own of an object downstream.
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
		set = fieldpath.NewSet() // not understood: nothing is known to be owned
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

// isInSync says whether downstream is as desired in every field of desired, and
// whether we own those fields and no others: that nobody has changed one, and that
// none is left over which upstream no longer sets.
//
// It needs no schema, so it can take equal things for different (a quantity that the
// server wrote in another way); an apply more is the price. It never takes different
// things for equal.
func isInSync(desired, downstream *unstructured.Unstructured) bool {
	ours := ownership(downstream).set
	want := ownable(desired)
	return covers(want, downstream.Object) && ownsAll(ours, want) && isAllIn(ours, want)
}

// ownable are the fields of desired that field ownership is about.
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

// covers says whether every field of want is in have with the same value. An element
// of a list may have gained fields, and a list elements: others' or defaults. That
// nobody changed a list which is ours as a whole is for ownership to say.
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

// coversList matches the elements in their order, leaving out those that others added.
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

// ownsAll says whether every leaf of want is in the set.
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

// elementOf finds the path element by which a set names an element of a list. The
// library's sequences panic when a loop over them is left early.
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
			// A key that is not given is one that the server gave a default.
			if given, ok := fields[key.Name]; ok && !value.Equals(key.Value, value.NewValueInterface(given)) {
				return false
			}
		}
		return true
	}
	return false
}

// isAllIn says whether every leaf of the set is in want.
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
