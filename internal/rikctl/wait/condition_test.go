package wait

import "testing"

func TestLongConditions(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"phase=Running":   "jsonpath={.status.phase}=Running",
		"condition=Ready": "condition=Ready",
		"delete":          "delete",
	} {
		if got := longConditions([]string{given}); got[0] != want {
			t.Errorf("longConditions(%q) = %q, want %q", given, got[0], want)
		}
	}
}
