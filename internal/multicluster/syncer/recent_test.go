package syncer

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"
)

// TestRecent tests that a response counts while the cache has an older version, and is not stored
// any longer.
func TestRecent(t *testing.T) {
	t.Parallel()
	name, began := cache.NewObjectName("n", "x"), time.Unix(1, 0)
	version := func(v string) *unstructured.Unstructured {
		if v == "" {
			return nil
		}
		o := &unstructured.Unstructured{Object: map[string]any{}}
		o.SetNamespace(name.Namespace)
		o.SetName(name.Name)
		o.SetResourceVersion(v)
		return o
	}
	for what, tc := range map[string]struct {
		// The versions in the cache at the write, in the response, and in the cache at the read.
		before, answer, after string
		ended                 bool
		later                 time.Duration
		want                  string
		kept                  bool
	}{
		"the cache is behind":           {before: "9", answer: "10", after: "9", want: "10", kept: true},
		"it has received another write": {before: "8", answer: "10", after: "9", want: "10", kept: true},
		"it has received ours":          {before: "9", answer: "10", after: "10", want: "10"},
		"it has received a later one":   {before: "9", answer: "10", after: "11", want: "11"},
		"it has received the deletion":  {before: "9", answer: "10", after: "", want: ""},
		"it had none":                   {before: "", answer: "10", after: "", want: ""},
		"it was ahead of the answer":    {before: "11", answer: "10", after: "11", want: "11"},
		"it has not received the end":   {before: "10", answer: "10", after: "10", ended: true, want: "10", kept: true},
		"it has received the end":       {before: "10", answer: "10", after: "", ended: true, want: ""},
		"too long ago":                  {before: "9", answer: "10", after: "9", later: recentFor, want: "9"},
		"versions are no numbers":       {before: "a", answer: "b", after: "a", want: "a"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var r recent
			answer := version(tc.answer)
			if tc.ended {
				answer.SetDeletionTimestamp(&metav1.Time{Time: began})
			}
			r.note(version(tc.before), answer, began)
			got := r.over(version(tc.after), name, began.Add(tc.later))
			if (got == nil) != (tc.want == "") || got != nil && got.GetResourceVersion() != tc.want {
				t.Errorf("over() = %v, want version %q", got, tc.want)
			}
			if (len(r.answers) > 0) != tc.kept {
				t.Errorf("it keeps %d answers, and is to keep one: %v", len(r.answers), tc.kept)
			}
		})
	}
}
