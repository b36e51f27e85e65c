package strategic

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	kjson "sigs.k8s.io/json"
)

// decode decodes a patch. Integers stay integers, and field names are case-sensitive. It
// returns duplicate fields separately from errors that make the patch unreadable.
func decode(body []byte) (document map[string]any, repeated []error, err error) {
	repeated, err = kjson.UnmarshalStrict(body, &document)
	if err == nil && document == nil {
		err = errors.New("not an object")
	}
	return document, repeated, err
}

// translate returns the JSON merge patch that changes current as the strategic merge patch
// would, with the strategies of the fields of typed. It applies only to the resourceVersion of
// current. guarded is true if that version was added here, and false if the client's patch
// contains a version itself. Neither document is changed.
func translate(current, patch map[string]any, typed any) (merge []byte, guarded bool, err error) {
	// The library changes both of its arguments.
	patched, err := strategicpatch.StrategicMergeMapPatch(runtime.DeepCopyJSON(current), runtime.DeepCopyJSON(patch), typed)
	if err != nil {
		return nil, false, refuse(err)
	}
	dropDirectives(map[string]any(patched))
	version := versionOf(current)
	guarded = versionOf(patched) == version || versionOf(patched) == ""
	changes := diff(current, patched)
	if guarded {
		if err := unstructured.SetNestedField(changes, version, "metadata", "resourceVersion"); err != nil {
			return nil, false, apierrors.NewBadRequest("metadata of the patch is not an object")
		}
	}
	merge, err = json.Marshal(changes)
	if err != nil {
		return nil, false, apierrors.NewInternalError(fmt.Errorf("encoding the merge patch: %w", err))
	}
	return merge, guarded, nil
}

// dropDirectives removes directives to the server that remain if the current object lacks the
// fields to which they refer. For its own types the server drops them when it decodes the
// result.
func dropDirectives(value any) {
	switch value := value.(type) {
	case map[string]any:
		for key, inner := range value {
			if isDirective(key) {
				delete(value, key)
				continue
			}
			dropDirectives(inner)
		}
	case []any:
		for _, inner := range value {
			dropDirectives(inner)
		}
	}
}

func isDirective(key string) bool {
	return key == "$retainKeys" || strings.HasPrefix(key, "$setElementOrder/") || strings.HasPrefix(key, "$deleteFromPrimitiveList/")
}

func versionOf(object map[string]any) string {
	version, _, err := unstructured.NestedString(object, "metadata", "resourceVersion")
	if err != nil {
		return "" // not a string; the server reports that
	}
	return version
}

// refuse converts an error of a patch to the status that the server returns for other types.
func refuse(err error) error {
	if errors.Is(err, mergepatch.ErrNoListOfLists) || errors.Is(err, mergepatch.ErrPatchContentNotMatchRetainKeys) {
		return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
	}
	return apierrors.NewBadRequest(err.Error())
}

// diff returns the JSON merge patch (RFC 7386) from one object to another.
func diff(from, to map[string]any) map[string]any {
	changes := map[string]any{}
	for key := range from {
		if _, kept := to[key]; !kept {
			changes[key] = nil
		}
	}
	for key, now := range to {
		before, known := from[key]
		if known && reflect.DeepEqual(before, now) {
			continue
		}
		beforeObject, wasObject := before.(map[string]any)
		nowObject, isObject := now.(map[string]any)
		if wasObject && isObject {
			changes[key] = diff(beforeObject, nowObject)
			continue
		}
		changes[key] = now
	}
	return changes
}
