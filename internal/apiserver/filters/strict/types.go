package strict

import (
	"encoding/json"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/api/strictdecode"
)

// types finds the type into which a document will be decoded.
type types struct {
	scheme *runtime.Scheme
	kinds  map[schema.GroupVersionResource]schema.GroupVersionKind
	groups []string
	lists  map[string]int
}

// typesOf maps resources to kinds, because a patch need not contain its kind.
func typesOf(scheme *runtime.Scheme, groups []string, lists map[string]int) types {
	t := types{scheme, map[schema.GroupVersionResource]schema.GroupVersionKind{}, groups, lists}
	for _, group := range groups {
		for _, gv := range scheme.PrioritizedVersionsForGroup(group) {
			t.add(gv)
		}
	}
	return t
}

func (t types) add(gv schema.GroupVersion) {
	for kind := range t.scheme.KnownTypes(gv) {
		plural, _ := meta.UnsafeGuessKindToResource(gv.WithKind(kind))
		t.kinds[plural] = gv.WithKind(kind)
	}
}

// head contains the identifying fields of a document.
type head struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
}

// check returns an error for every value that does not fit the type of its field. It ignores
// documents that cannot be parsed, which the server reports.
func (t types) check(body []byte, mediaType string, info *request.RequestInfo) error {
	// JSON is also YAML, but is parsed much faster as JSON.
	if (mediaType == mediaYAML || mediaType == mediaApply) && !json.Valid(body) {
		var err error
		if body, err = yaml.YAMLToJSON(body); err != nil {
			return nil //nolint:nilerr // left to the server
		}
	}
	var h head
	_ = json.Unmarshal(body, &h) // if fields are missing, the request has them
	into, kind := t.typeOf(h, info)
	misfits := t.tooLong(body, mediaType)
	if len(misfits) == 0 && into != nil && slices.Contains(t.groups, info.APIGroup) {
		misfits = validated(body, mediaType, into)
	}
	if len(misfits) == 0 {
		return nil
	}
	name := info.Name
	if name == "" {
		name = h.Metadata.Name
	}
	return apierrors.NewInvalid(kind, name, misfits)
}

// typeOf uses the kind in the document if there is one, because the subresource scale has
// another type than its resource.
func (t types) typeOf(h head, info *request.RequestInfo) (runtime.Object, schema.GroupKind) {
	kind := schema.FromAPIVersionAndKind(h.APIVersion, h.Kind)
	if h.Kind == "" || h.APIVersion == "" {
		if info.Subresource != "" && info.Subresource != "status" {
			return nil, schema.GroupKind{}
		}
		kind = t.kinds[schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}]
	}
	into, err := t.scheme.New(kind)
	if err != nil {
		return nil, kind.GroupKind()
	}
	return into, kind.GroupKind()
}

func validated(body []byte, mediaType string, into runtime.Object) field.ErrorList {
	if mediaType != mediaJSONPatch {
		return strictdecode.Check(body, into)
	}
	var operations []struct {
		Op    string          `json:"op"`
		Path  string          `json:"path"`
		Value json.RawMessage `json:"value"`
	}
	if json.Unmarshal(body, &operations) != nil {
		return nil
	}
	var errs field.ErrorList
	for _, o := range operations {
		if o.Op == "add" || o.Op == "replace" {
			errs = append(errs, strictdecode.CheckAt(o.Path, o.Value, into)...)
		}
	}
	return errs
}
