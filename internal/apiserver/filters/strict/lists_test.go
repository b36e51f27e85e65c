package strict

import (
	"fmt"
	"strings"
	"testing"
)

func TestListsAreBounded(t *testing.T) {
	t.Parallel()
	of := types{lists: map[string]int{"containers": 2, "env": 3}}
	list := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat(`{"name":"a"},`, n), ",") + "]" }
	for name, tc := range map[string]struct{ body, mediaType, want string }{
		"as many as may be": {`{"spec":{"containers":` + list(2) + `}}`, mediaJSON, "[]"},
		"too many":          {`{"spec":{"containers":` + list(3) + `}}`, mediaJSON, "spec.containers: Too many: 3: must have at most 2 items"},
		"deep":              {`{"spec":{"containers":[{"env":[]},{"env":` + list(4) + `}]}}`, mediaMergePatch, "spec.containers[1].env: Too many: 4"},
		"another list":      {`{"spec":{"words":` + list(9) + `}}`, mediaJSON, "[]"},
		"a list in a list":  {`{"containers":[` + list(9) + `]}`, mediaJSON, "[]"},
		"a patch":           {`[{"op":"add","path":"/spec/containers","value":` + list(3) + `}]`, mediaJSONPatch, "spec.containers: Too many: 3"},
		"a patch of more":   {`[{"op":"add","path":"/spec","value":{"containers":` + list(3) + `}}]`, mediaJSONPatch, "spec.containers: Too many: 3"},
		"no JSON":           {`{"spec":{"containers":[{`, mediaJSON, "[]"},
		"a bare list":       {list(9), mediaJSON, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := fmt.Sprint(of.tooLong([]byte(tc.body), tc.mediaType)); !strings.Contains(got, tc.want) {
				t.Errorf("tooLong() = %s, want %s", got, tc.want)
			}
		})
	}
}
