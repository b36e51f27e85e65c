package claim

import "testing"

func TestHolderIn(t *testing.T) {
	t.Parallel()
	const locks = `1: FLOCK  ADVISORY  WRITE 2483 fe:00:802914 0 EOF
2: OFDLCK ADVISORY  WRITE -1 fe:00:802995 0 EOF
2: -> FLOCK  ADVISORY  WRITE 77 fe:00:802995 0 EOF
3: FLOCK  ADVISORY  WRITE 12 00:24:802914 0 EOF
4: POSIX  ADVISORY  WRITE 13 fe:00:31 0 EOF
`
	for name, tc := range map[string]struct {
		major, minor uint32
		inode        uint64
		want         int
	}{
		"one":                    {254, 0, 802914, 2483},
		"one of another device":  {0, 36, 802914, 12},
		"a device of its own":    {0, 99, 802914, 12},
		"one of another kind":    {254, 0, 31, 0},
		"one that is waited for": {254, 0, 802995, 0},
		"none":                   {254, 0, 5, 0},
		"the end of another's":   {254, 0, 914, 0},
	} {
		if got := holderIn(locks, tc.major, tc.minor, tc.inode); got != tc.want {
			t.Errorf("%s: holderIn() = %d, want %d", name, got, tc.want)
		}
	}
}

func TestWhoseAMarkIs(t *testing.T) {
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
