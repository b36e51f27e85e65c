package guestinit

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"rik.dev/rik/internal/riklet/guest"
)

// How far from its speed the kernel may believe its timer to be. One that is taken to be
// faster than it is comes late by as much; one that is taken to be slower is set again
// and again until it is time.
const (
	timerLeast = 0.5
	timerMost  = 1.5
)

// checkTimer looks at what the kernel of this machine has for a timer.
func checkTimer() error {
	parameters, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	list, err := os.ReadFile("/proc/timer_list")
	if err != nil {
		return nil //nolint:nilerr // a kernel that does not show it
	}
	return validateTimer(string(parameters), string(list))
}

// validateTimer refuses a machine whose kernel has measured the timers of its processors
// wrongly, or given them up. In software emulation it does so when QEMU is not given a
// processor for some time while it measures: it takes the time that passed for that
// which the counter counted. It never measures again, and such a machine stands still,
// or nearly. parameters are the kernel's, list is /proc/timer_list
// (kernel/time/timer_list.c).
func validateTimer(parameters, list string) error {
	want := 0.0
	for p := range strings.FieldsSeq(parameters) {
		if value, ok := strings.CutPrefix(p, guest.TimerParameter+"="); ok {
			want, _ = strconv.ParseFloat(value, 64)
		}
	}
	if want <= 0 {
		return nil
	}
	for device := range strings.SplitSeq(list, "Tick Device:") {
		if !strings.Contains(device, "Per CPU device:") {
			continue
		}
		name, multiplier, shift := clockEventDevice(device)
		switch {
		case name == "<NULL>":
			return errors.New("the kernel has given up its timer, which it measured " + guest.HeldUp)
		case name != "lapic":
			continue
		}
		// The kernel counts ns * mult >> shift for a pause (clockevents_program_event).
		is := multiplier * 1e9 / math.Exp2(shift)
		if is < timerLeast*want || is > timerMost*want {
			return fmt.Errorf("the kernel has measured its timer to run at %.0f Hz, %s: it runs at %.0f", is, guest.HeldUp, want)
		}
	}
	return nil
}

// clockEventDevice reads the name, the multiplier and the shift of one.
func clockEventDevice(text string) (name string, multiplier, shift float64) {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "Clock Event Device":
			name = value
		case "mult":
			multiplier, _ = strconv.ParseFloat(value, 64)
		case "shift":
			shift, _ = strconv.ParseFloat(value, 64)
		}
	}
	return name, multiplier, shift
}
