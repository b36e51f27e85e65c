package scheduling

import "testing"

func TestParseAddress(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]Address{
		"http://localhost:4996":   {"localhost:4996", "localhost"},
		"https://scheduler":       {"scheduler:4996", "scheduler"},
		"https://[::1]":           {"[::1]:4996", "::1"},
		"https://10.0.0.1:5/path": {"10.0.0.1:5", "10.0.0.1"},
		"localhost:4996":          {},
		"":                        {},
		"https://a b":             {},
	} {
		if got, err := ParseAddress(raw); got != want || (err == nil) != (want != Address{}) {
			t.Errorf("ParseAddress(%q) = %+v, %v, want %+v", raw, got, err, want)
		}
	}
}
