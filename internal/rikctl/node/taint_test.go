package node

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

func TestTaints(t *testing.T) {
	t.Parallel()
	current := []rikv1alpha1.Taint{{Key: "a", Value: "1", Effect: "NoSchedule"}, {Key: "a", Effect: "NoExecute"}, {Key: "b", Effect: "NoSchedule"}}
	tests := []struct {
		line      string
		overwrite bool
		want      []string
		err       string
	}{
		{line: "c=2:NoExecute", want: []string{"a=1:NoSchedule", "a:NoExecute", "b:NoSchedule", "c=2:NoExecute"}},
		{line: "a-", want: []string{"b:NoSchedule"}},
		{line: "a:NoExecute-", want: []string{"a=1:NoSchedule", "b:NoSchedule"}},
		{line: "a=1:NoSchedule", want: []string{"a=1:NoSchedule", "a:NoExecute", "b:NoSchedule"}},
		{line: "a=2:NoSchedule", err: "--overwrite"},
		{line: "a=2:NoSchedule", overwrite: true, want: []string{"a=2:NoSchedule", "a:NoExecute", "b:NoSchedule"}},
		{line: "b- b:PreferNoSchedule", want: []string{"a=1:NoSchedule", "a:NoExecute", "b:PreferNoSchedule"}},
		{line: "z-", err: `"z" not found`},
		{line: "z", err: "no effect"},
		{line: "z=1:Never", err: `effect "Never"`},
		{line: ":NoSchedule", err: "no key"},
	}
	for _, tc := range tests {
		t.Run(tc.line, func(t *testing.T) {
			t.Parallel()
			got, err := taintAll(current, strings.Fields(tc.line), tc.overwrite)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error = %v, want %q", err, tc.err)
				}
				return
			}
			var words []string
			for i := range got {
				words = append(words, got[i].Text())
			}
			if diff := cmp.Diff(tc.want, words); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func taintAll(current []rikv1alpha1.Taint, words []string, overwrite bool) ([]rikv1alpha1.Taint, error) {
	var changes []taintChange
	for _, w := range words {
		c, err := parseTaint(w)
		if err != nil {
			return nil, err
		}
		changes = append(changes, c)
	}
	return applyTaints(current, changes, overwrite)
}
