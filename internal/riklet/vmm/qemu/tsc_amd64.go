package qemu

import "time"

// rdtsc reads the processor's time-stamp counter.
func rdtsc() uint64

// tscKilohertz measures the frequency of the time-stamp counter, with an error of some parts per
// million. QEMU's software emulation passes the counter to guests unchanged.
func tscKilohertz() int64 {
	const span = 50 * time.Millisecond
	from, began := reading()
	time.Sleep(span)
	to, ended := reading()
	if to <= from {
		return 0
	}
	return int64(float64(to-from) / float64(ended.Sub(began).Nanoseconds()) * 1e6)
}

// reading pairs the counter with the clock. It returns the most precise of several attempts,
// because the process may be interrupted between the two.
func reading() (counter uint64, at time.Time) {
	best := time.Duration(1<<63 - 1)
	for range 10 {
		before := time.Now()
		c := rdtsc()
		if took := time.Since(before); took < best {
			best, counter, at = took, c, before
		}
	}
	return counter, at
}
