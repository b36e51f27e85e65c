package controller

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

func version(uid, number string) *entry {
	e := &entry{Unstructured: &unstructured.Unstructured{Object: map[string]any{}}}
	e.SetName("web--east")
	e.SetUID(types.UID(uid))
	e.SetResourceVersion(number)
	return e
}

// TestWritesCountUntilTheyAreShown tests that a write replaces earlier versions from the watch,
// but no later ones.
func TestWritesCountUntilTheyAreShown(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		written *entry
		deleted bool
		shown   *entry
		later   time.Duration
		want    string // the version that counts; empty if none
		waits   bool
	}{
		"made, not shown":            {written: version("1", "9"), want: "9", waits: true},
		"made, never shown":          {written: version("1", "9"), later: showTimeout, want: ""},
		"changed, shown as before":   {written: version("1", "10"), shown: version("1", "9"), want: "10", waits: true},
		"changed, shown":             {written: version("1", "10"), shown: version("1", "10"), want: "10"},
		"changed, shown later":       {written: version("1", "10"), shown: version("1", "100"), want: "100"},
		"deleted, shown as before":   {written: version("1", "9"), deleted: true, shown: version("1", "9"), want: "9", waits: true},
		"deleted, shown as deleted":  {written: version("1", "9"), deleted: true, shown: version("1", "10"), want: "10"},
		"deleted, gone":              {written: version("1", "9"), deleted: true, want: ""},
		"deleted, and another since": {written: version("1", "9"), deleted: true, shown: version("2", "12"), want: "12"},
	} {
		now := time.Unix(1000, 0)
		w := newWrites()
		w.now = func() time.Time { return now }
		w.note("shop/web", tc.written, tc.deleted)
		now = now.Add(tc.later)
		shown := map[string]*entry{}
		if tc.shown != nil {
			shown[tc.shown.GetName()] = tc.shown
		}
		got := ""
		if e := w.over("shop/web", shown)["web--east"]; e != nil {
			got = e.GetResourceVersion()
		}
		if got != tc.want || w.waits("shop/web") != tc.waits {
			t.Errorf("%s: version %q, waits %v; want %q, %v", name, got, w.waits("shop/web"), tc.want, tc.waits)
		}
	}
	w := newWrites()
	w.note("shop/web", version("1", "9"), false)
	if w.gone("shop/web", "web--east", "2"); !w.waits("shop/web") {
		t.Error("the end of another object ended the wait")
	}
	if w.gone("shop/web", "web--east", "1"); w.waits("shop/web") {
		t.Error("the end of the object did not end the wait")
	}
}
