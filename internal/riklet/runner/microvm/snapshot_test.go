package microvm

import (
	"strings"
	"testing"
)

func TestCheckSnapshotSpace(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	for name, tc := range map[string]struct {
		free, size, memory int64
		fits               bool
	}{
		"plenty":                   {100 * gib, 200 * gib, gib, true},
		"full":                     {0, 200 * gib, gib, false},
		"only the memory fits":     {gib, 200 * gib, gib, false},
		"the reserve is kept":      {gib + gib/8 + deviceMemoryBytes + maxReserve - 1, 200 * gib, gib, false},
		"exactly":                  {gib + gib/8 + deviceMemoryBytes + maxReserve, 200 * gib, gib, true},
		"a small disk keeps less":  {gib + gib/8 + deviceMemoryBytes + 2*gib/reserveShare, 2 * gib, gib, true},
		"but not nothing":          {gib + gib/8 + deviceMemoryBytes, 2 * gib, gib, false},
		"as much memory as can be": {100 * gib, 200 * gib, 1 << 40, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := checkSpace(tc.free, tc.size, tc.memory)
			if (err == nil) != tc.fits {
				t.Errorf("checkSpace(%d, %d, %d) = %v, want fits: %v", tc.free, tc.size, tc.memory, err, tc.fits)
			}
			if err != nil && !strings.Contains(err.Error(), "suspend it in memory") {
				t.Errorf("%v names no way out", err)
			}
		})
	}
}
