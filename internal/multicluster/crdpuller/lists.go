package crdpuller

import (
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// The types of lists.
const (
	listAtomic = "atomic"
	listSet    = "set"
	listMap    = "map"
)

// defaultProtocol is the default protocol of ports, for clusters whose models do not contain it.
var defaultProtocol = apiextensionsv1.JSON{Raw: []byte(`"TCP"`)}

// listKind is how the items of a list are identified when two clients write it.
type listKind struct {
	kind string
	keys []string // of a map
}

// listKindOf returns the list type in the extensions of a list. If the list has none, it derives
// it from the strategic merge patch.
func listKindOf(s *spec.Schema) listKind {
	if kind, ok := s.Extensions.GetString("x-kubernetes-list-type"); ok {
		keys, _ := s.Extensions.GetStringSlice("x-kubernetes-list-map-keys")
		return listKind{kind: kind, keys: keys}
	}
	strategy, _ := s.Extensions.GetString("x-kubernetes-patch-strategy")
	if !slices.Contains(strings.Split(strategy, ","), "merge") {
		return listKind{kind: listAtomic}
	}
	if key, ok := s.Extensions.GetString("x-kubernetes-patch-merge-key"); ok {
		return listKind{kind: listMap, keys: []string{key}}
	}
	return listKind{kind: listSet}
}

// apply sets the list type on a list with known items. If the items do not allow it, the list
// becomes atomic.
func (l listKind) apply(p *props, unique bool) error {
	item := p.Items.Schema
	if unique {
		// A CRD cannot express uniqueness in another way.
		if !isScalar(item) {
			return fmt.Errorf("unique items that are not scalars: %w", ErrNotExpressible)
		}
		l = listKind{kind: listSet}
	}
	switch {
	case l.kind == listMap && l.canKey(item):
		completeKeys(item, l.keys)
		p.XListMapKeys = l.keys
	case l.kind == listSet && (isScalar(item) || isAtomic(item)):
	default:
		l.kind = listAtomic
	}
	p.XListType = &l.kind
	return nil
}

func (l listKind) canKey(item *props) bool {
	for _, key := range l.keys {
		property, ok := item.Properties[key]
		if !ok || !isScalar(&property) {
			return false
		}
	}
	return len(l.keys) > 0 && item.Type == "object" && !item.Nullable
}

// completeKeys makes sure that every item has its keys.
func completeKeys(item *props, keys []string) {
	for _, key := range keys {
		property := item.Properties[key]
		property.Nullable = false
		switch {
		case property.Default != nil, slices.Contains(item.Required, key):
		case key == "protocol":
			property.Default = &defaultProtocol
		default:
			item.Required = append(item.Required, key)
		}
		item.Properties[key] = property
	}
}

func isScalar(p *props) bool {
	switch p.Type {
	case "string", "integer", "number", "boolean":
		return !p.Nullable
	default:
		return false
	}
}

func isAtomic(p *props) bool {
	return p.Type == "object" && p.XMapType != nil && *p.XMapType == listAtomic || p.Type == "array" && p.XListType != nil && *p.XListType == listAtomic
}
