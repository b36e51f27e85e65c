package v1alpha1

import "testing"

func TestParseTaint(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Taint{
		"gpu=yes:NoSchedule": {Key: "gpu", Value: "yes", Effect: TaintNoSchedule},
		"gpu:NoExecute":      {Key: "gpu", Effect: TaintNoExecute},
	} {
		got, err := ParseTaint(text)
		if err != nil || got != want || got.Text() != text {
			t.Errorf("ParseTaint(%q) = %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "gpu", ":NoSchedule"} {
		if got, err := ParseTaint(text); err == nil {
			t.Errorf("ParseTaint(%q) = %+v, want an error", text, got)
		}
	}
}
