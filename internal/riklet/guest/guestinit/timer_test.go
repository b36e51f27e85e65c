package guestinit

import (
	"fmt"
	"strings"
	"testing"
)

// timerList returns the end of a guest's /proc/timer_list, with a timer for each name.
func timerList(multiplier int, names ...string) string {
	var b strings.Builder
	b.WriteString("now at 1 nsecs\n\nTick Device: mode:     1\nBroadcast device\nClock Event Device: <NULL>\ntick_broadcast_mask: 0\n\n")
	for cpu, name := range names {
		fmt.Fprintf(&b, "Tick Device: mode:     1\nPer CPU device: %d\nClock Event Device: %s\n", cpu, name)
		if name != "<NULL>" {
			fmt.Fprintf(&b, " max_delta_ns:   34359463539\n min_delta_ns:   1000\n mult:           %d\n shift:          32\n mode:           3\n", multiplier)
		}
		b.WriteString("Wakeup Device: <NULL>\n\n")
	}
	return b.String()
}

// TestTimersMeasuredWrongly covers a guest whose kernel was delayed while it measured its
// timer. The guest stood still forever, but still answered.
func TestTimersMeasuredWrongly(t *testing.T) {
	t.Parallel()
	const parameters = "console=ttyS0 rik.timer_hz=62500000 tsc=reliable\n"
	// The multipliers of the first two are those of Debian's 6.1 in guests of QEMU 7.2. Two more
	// are computed from the frequencies that such kernels measured while QEMU was paused now and
	// then: 5,035 and 13,327,580 for 4,000,000. One is just within the limit.
	for _, tc := range []struct {
		name, parameters, list, want string
	}{
		{"measured well", parameters, timerList(268437603, "lapic"), ""},
		{"of two processors", parameters, timerList(268433308, "lapic", "lapic"), ""},
		{"held up at the end", parameters, timerList(394827000, "lapic"), ""},
		{"given up", parameters, timerList(0, "<NULL>"), "switched off its timer"},
		{"held up at the beginning", parameters, timerList(337893, "lapic"), "at 78672 Hz"},
		{"held up for long at the end", parameters, timerList(894403952, "lapic"), "at 208244648 Hz"},
		{"of the second processor", parameters, timerList(268433308, "lapic", "<NULL>"), "switched off its timer"},
		{"its speed is not known", "console=ttyS0\n", timerList(337893, "lapic"), ""},
		{"another timer", parameters, timerList(337893, "lapic-deadline"), ""},
		{"nothing is shown", parameters, "", ""},
		{"the last word counts", parameters + " rik.timer_hz=1", timerList(268437603, "lapic"), "it runs at 1"},
	} {
		err := validateTimer(tc.parameters, tc.list)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}
