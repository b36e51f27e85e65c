package nodelock

import "testing"

func TestMarkOwner(t *testing.T) {
	t.Parallel()
	me := owner{Places{StateDir: "/a"}, "i"}
	for name, tc := range map[string]struct {
		has  owner
		want bool
	}{
		"no mark":                       {owner{}, false},
		"its own":                       {me, false},
		"its own before it was moved":   {owner{Places{StateDir: "/b"}, "i"}, false},
		"its own before it was emptied": {owner{Places{StateDir: "/a"}, "j"}, false},
		"another's":                     {owner{Places{StateDir: "/b"}, "j"}, true},
	} {
		if got := me.other(tc.has); got != tc.want {
			t.Errorf("%s: other() = %t, want %t", name, got, tc.want)
		}
	}
}
