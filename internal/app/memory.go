package app

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// settled is how long after the start a control plane has made its lasting
	// parts: schemas, discovery and the first lists.
	settled   = 10 * time.Second
	tuneEvery = 500 * time.Millisecond
)

// An idle control plane stays small; one with much to hold lets more garbage gather
// before it is collected, since a third of its CPU went into that while instances
// came by the thousand. Sizes are of what lives on the heap, in bytes.
const (
	smallHeap, smallPercent   = 96 << 20, 50
	middleHeap, middlePercent = 192 << 20, 100
	largePercent              = 200
)

// tuneMemory returns the memory that only the start needed to the machine, since a
// process that does little afterwards would not collect it for minutes, and then
// keeps the collector to what the size of the heap asks for. It ends with ctx.
func tuneMemory(ctx context.Context) {
	back := time.NewTimer(settled)
	defer back.Stop()
	tick := time.NewTicker(tuneEvery)
	defer tick.Stop()
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	percent := smallPercent
	debug.SetGCPercent(percent)
	for {
		select {
		case <-ctx.Done():
			return
		case <-back.C:
			debug.FreeOSMemory()
		case <-tick.C:
			metrics.Read(sample)
			if want := collectAt(sample[0].Value.Uint64()); want != percent {
				percent = want
				debug.SetGCPercent(percent)
			}
		}
	}
}

// collectAt is the growth, in percent of what lives, at which garbage is collected.
func collectAt(live uint64) int {
	switch {
	case live <= smallHeap:
		return smallPercent
	case live <= middleHeap:
		return middlePercent
	default:
		return largePercent
	}
}
