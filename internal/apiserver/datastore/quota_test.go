package datastore

import "testing"

func TestQuota(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"10Gi": "10Gi", "1G": "1G", "64Mi": "64Mi", "1Mi": "", "-1Gi": "", "ten": ""} {
		var q Quota
		err := q.Set(text)
		if (err == nil) != (want != "") {
			t.Errorf("Set(%q) = %v", text, err)
		}
		if text == "10Gi" && (q != 10<<30 || q.String() != want) {
			t.Errorf("Set(%q) is %d, %q", text, q, q.String())
		}
	}
}
