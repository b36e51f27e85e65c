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

// The accepted range for the ratio of the kernel's measured timer frequency to the real one. If
// the measured frequency is too high, timers expire late by that factor. If it is too low, the
// kernel sets the timer again and again until the time is reached.
const (
	minTimerRatio = 0.5
	maxTimerRatio = 1.5
)

// checkTimer validates the kernel's timers of this machine.
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
// wrongly, or has disabled them. In software emulation this happens if QEMU gets no processor
// time during the measurement: the kernel then relates the counter to the wrong duration. It
// never measures again, and such a machine stands still, or nearly so. parameters are the
// kernel's, list is /proc/timer_list (kernel/time/timer_list.c).
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
			return errors.New("the kernel has switched off its timer, which it measured " + guest.PausedMessage)
		case name != "lapic":
			continue
		}
		// The kernel computes ns * mult >> shift for a timeout (clockevents_program_event).
		is := multiplier * 1e9 / math.Exp2(shift)
		if is < minTimerRatio*want || is > maxTimerRatio*want {
			return fmt.Errorf("the kernel has measured its timer at %.0f Hz, %s: it runs at %.0f Hz", is, guest.PausedMessage, want)
		}
	}
	return nil
}

// clockEventDevice parses the name, the multiplier and the shift of one device.
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
