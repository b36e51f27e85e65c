package nodestate

import "testing"

func TestNodeName(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{"web-1.example": "web-1.example", "Web_1": "web-1", "_x_": "x", "": ""} {
		got := NodeName(host)
		if got != want {
			t.Errorf("NodeName(%q) = %q, want %q", host, got, want)
		}
		if problems := NodeNameProblems(got); (len(problems) > 0) != (want == "") {
			t.Errorf("NodeNameProblems(%q) = %v", got, problems)
		}
	}
}
