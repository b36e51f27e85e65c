package main

import (
	"strings"
	"testing"
)

func TestUnsigned(t *testing.T) {
	t.Parallel()
	const header = "\x00\x00\x02\x00\x00\x00\x00\x00"
	signature := strings.Repeat("s", 256)
	for name, tc := range map[string]struct{ module, want string }{
		"signed":             {"module" + signature + header + "\x00\x00\x01\x00" + signed, "module"},
		"not signed":         {"module", "module"},
		"nothing":            {"", ""},
		"no header":          {signed, signed},
		"a longer signature": {"module" + header + "\x00\x00\x01\x00" + signed, "module" + header + "\x00\x00\x01\x00" + signed},
		"a huge signature":   {"module" + header + "\xff\xff\xff\xff" + signed, "module" + header + "\xff\xff\xff\xff" + signed},
	} {
		if got := string(unsigned([]byte(tc.module))); got != tc.want {
			t.Errorf("%s: unsigned() = %.40q, want %.40q", name, got, tc.want)
		}
	}
}
