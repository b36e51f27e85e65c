package facts

import (
	"slices"

	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/doctor"
)

// timekeepers are programs that set the clock. The kernel shortens names to 15 bytes.
var timekeepers = []string{"chronyd", "systemd-timesyn", "ntpd", "openntpd"}

func (g *gatherer) clock() doctor.Clock {
	var c doctor.Clock
	var state unix.Timex
	if _, err := unix.Adjtimex(&state); err == nil {
		c.Known, c.Synchronized = true, state.Status&unix.STA_UNSYNC == 0
	}
	for _, p := range g.processes {
		if slices.Contains(timekeepers, p.name) {
			if c.Service = unitOf(p.pid); c.Service == "" {
				c.Service = p.name
			}
		}
	}
	return c
}
