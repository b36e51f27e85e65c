package size

import "testing"

func TestBytes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"10Gi": "10Gi", "1G": "1G", "64Mi": "64Mi", "1Mi": "", "-1Gi": "", "ten": ""} {
		var b Bytes
		err := b.Set(text)
		if (err == nil) != (want != "") {
			t.Errorf("Set(%q) = %v", text, err)
		}
		if text == "10Gi" && (b != 10<<30 || b.String() != want) {
			t.Errorf("Set(%q) is %d, %q", text, b, b.String())
		}
	}
}
