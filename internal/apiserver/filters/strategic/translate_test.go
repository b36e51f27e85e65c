package strategic

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"pgregory.net/rapid"
)

const deployment = `{"apiVersion":"apps/v1","kind":"Deployment",
"metadata":{"name":"web","resourceVersion":"7","labels":{"a":"1","b":"2"}},
"spec":{"replicas":2,"template":{"spec":{"terminationGracePeriodSeconds":9007199254740993,
"containers":[{"name":"a","image":"a:1","env":[{"name":"X","value":"1"}]},{"name":"b","image":"b:1"}]}}}}`

func read(t *testing.T, text string) map[string]any {
	t.Helper()
	document, _, err := decode([]byte(text))
	if err != nil {
		t.Fatalf("decode(%s) = %v", text, err)
	}
	return document
}

func TestTranslate(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, patch, want string
		unguarded         bool
	}{
		{"nothing", `{}`, `{"metadata":{"resourceVersion":"7"}}`, false},
		{"scalar", `{"spec":{"replicas":3}}`, `{"metadata":{"resourceVersion":"7"},"spec":{"replicas":3}}`, false},
		{"removal", `{"metadata":{"labels":{"a":null}}}`, `{"metadata":{"resourceVersion":"7","labels":{"a":null}}}`, false},
		{
			"one container of two", `{"spec":{"template":{"spec":{"containers":[{"name":"b","image":"b:2"}]}}}}`,
			`{"metadata":{"resourceVersion":"7"},"spec":{"template":{"spec":{"containers":[
				{"name":"a","image":"a:1","env":[{"name":"X","value":"1"}]},{"name":"b","image":"b:2"}]}}}}`, false,
		},
		{
			"a container removed", `{"spec":{"template":{"spec":{"containers":[{"$patch":"delete","name":"b"}]}}}}`,
			`{"metadata":{"resourceVersion":"7"},"spec":{"template":{"spec":{"containers":[
				{"name":"a","image":"a:1","env":[{"name":"X","value":"1"}]}]}}}}`, false,
		},
		{
			"order and keys", `{"spec":{"strategy":{"$retainKeys":["type"],"type":"Recreate"},"template":{"spec":{
				"$setElementOrder/containers":[{"name":"b"},{"name":"a"}],"containers":[{"name":"b","image":"b:2"}]}}}}`,
			`{"metadata":{"resourceVersion":"7"},"spec":{"strategy":{"type":"Recreate"},"template":{"spec":{"containers":[
				{"name":"b","image":"b:2"},{"name":"a","image":"a:1","env":[{"name":"X","value":"1"}]}]}}}}`, false,
		},
		{"the same version", `{"metadata":{"resourceVersion":"7"}}`, `{"metadata":{"resourceVersion":"7"}}`, false},
		{"another version", `{"metadata":{"resourceVersion":"6"}}`, `{"metadata":{"resourceVersion":"6"}}`, true},
		{
			"a large number in another field", `{"spec":{"template":{"spec":{"priority":9007199254740995}}}}`,
			`{"metadata":{"resourceVersion":"7"},"spec":{"template":{"spec":{"priority":9007199254740995}}}}`, false,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			current, patch := read(t, deployment), read(t, tc.patch)
			merge, guarded, err := translate(current, patch, &appsv1.Deployment{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(read(t, tc.want), read(t, string(merge))); diff != "" {
				t.Errorf("merge patch (-want +got):\n%s", diff)
			}
			if guarded == tc.unguarded {
				t.Errorf("guarded = %v", guarded)
			}
			if diff := cmp.Diff(read(t, deployment), current); diff != "" {
				t.Errorf("the current object was changed:\n%s", diff)
			}
			if diff := cmp.Diff(read(t, tc.patch), patch); diff != "" {
				t.Errorf("the patch was changed:\n%s", diff)
			}
		})
	}
}

func TestTranslateRefuses(t *testing.T) {
	t.Parallel()
	for name, patch := range map[string]string{
		"a list without its key": `{"spec":{"template":{"spec":{"containers":[{"image":"b:2"}]}}}}`,
		"a text for an object":   `{"metadata":"web"}`,
		"a wrong directive":      `{"spec":{"$patch":"sideways"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := translate(read(t, deployment), read(t, patch), &appsv1.Deployment{})
			if !apierrors.IsBadRequest(err) {
				t.Errorf("translate(%s) = %v, want a bad request", patch, err)
			}
		})
	}
}

func TestDecode(t *testing.T) {
	t.Parallel()
	if _, repeated, err := decode([]byte(`{"spec":{"replicas":1,"replicas":2}}`)); err != nil || len(repeated) != 1 {
		t.Errorf("a field twice: %v, %v, want it named and no error", repeated, err)
	}
	for _, bad := range []string{"", "null", "[]", "{", `"x"`} {
		if document, _, err := decode([]byte(bad)); err == nil {
			t.Errorf("decode(%q) = %v, want an error", bad, document)
		}
	}
}

// values draws JSON values without null, which no stored object contains.
func values() *rapid.Generator[any] {
	return rapid.Deferred(func() *rapid.Generator[any] {
		return rapid.OneOf(
			rapid.Int64().AsAny(), rapid.StringMatching("[a-c]").AsAny(), rapid.Bool().AsAny(),
			rapid.SliceOfN(rapid.StringMatching("[a-c]"), 0, 2).AsAny(), objects().AsAny())
	})
}

func objects() *rapid.Generator[map[string]any] {
	return rapid.MapOfN(rapid.StringMatching("[a-c]"), values(), 0, 3)
}

// TestDiffGivesTheSecondObject: applying the difference with another implementation of merge patches
// gives the second object. The difference of equal objects is empty.
func TestDiffGivesTheSecondObject(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		from, to := objects().Draw(t, "from"), objects().Draw(t, "to")
		fromJSON, toJSON, changes := encoded(t, from), encoded(t, to), encoded(t, diff(from, to))
		got, err := jsonpatch.MergePatch(fromJSON, changes)
		if err != nil {
			t.Fatal(err)
		}
		if !jsonpatch.Equal(got, toJSON) {
			t.Fatalf("%s with %s = %s, want %s", fromJSON, changes, got, toJSON)
		}
		if same := diff(to, to); len(same) > 0 {
			t.Fatalf("diff of equal objects = %v", same)
		}
	})
}

func encoded(t *rapid.T, object map[string]any) []byte {
	data, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
