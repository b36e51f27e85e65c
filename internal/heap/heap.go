// Package heap limits the memory of a control plane to what it needs. It adjusts Go's garbage
// collector, and returns memory to the system after a burst of work.
package heap

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// settled is the time after the start at which a control plane has created its permanent
	// data: schemas, discovery and the first lists.
	settled      = 10 * time.Second
	tuneInterval = 500 * time.Millisecond
	// idleLooks is the number of successive samples, 10 s, within which a busy process runs a
	// garbage collection. Memory that is free in all of them is not about to be used.
	idleLooks = 20
	// returnInterval is the minimum time between two returns of memory, because each one costs a
	// full collection.
	returnInterval = time.Minute
)

// An idle control plane must stay small. One with a large heap collects less often, because
// collections took a third of its CPU while thousands of instances were created. Sizes are those
// of the live heap, in bytes.
const (
	smallHeap, smallPercent   = 96 << 20, 50
	middleHeap, middlePercent = 192 << 20, 100
	largePercent              = 200
)

// schemasFree is the amount of unused memory that a kcp may keep. Most of its heap is schemas,
// and loading many of them leaves as much garbage as permanent data.
const schemasFree = 64 << 20

// Policy is the memory policy for a kind of control plane.
type Policy struct {
	// percent returns the value of GOGC for a size of the live heap.
	percent func(live uint64) int
	// free is the amount of memory that may be unused for long; zero means no limit.
	free uint64
}

// Server returns the policy for the control plane of a rik cluster.
func Server() Policy { return Policy{percent: serverPercent} }

// KCP returns the policy for a kcp.
func KCP() Policy { return Policy{percent: kcpPercent, free: schemasFree} }

// Small sets GOGC for a node agent. It uses CPU, which an idle agent has, to save memory.
func Small() { debug.SetGCPercent(smallPercent) }

// Tune applies the policy to Go's garbage collector until ctx ends. Once after the start, it
// returns the memory that only the start needed to the system, because an idle process would not
// collect it for minutes. If GOGC or GOMEMLIMIT (package runtime) is set, Tune does nothing.
func Tune(ctx context.Context, p Policy) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	back := time.NewTimer(settled)
	defer back.Stop()
	tick := time.NewTicker(tuneInterval)
	defer tick.Stop()
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/free:bytes"}}
	percent := smallPercent
	debug.SetGCPercent(percent)
	var unused idle
	for {
		select {
		case <-ctx.Done():
			return
		case <-back.C:
			debug.FreeOSMemory()
		case now := <-tick.C:
			metrics.Read(sample)
			if want := p.percent(sample[0].Value.Uint64()); want != percent {
				percent = want
				debug.SetGCPercent(percent)
			}
			if p.free > 0 && unused.look(sample[1].Value.Uint64() > p.free, now) {
				debug.FreeOSMemory()
			}
		}
	}
}

// idle detects that much memory has been free for a long time.
type idle struct {
	looks    int
	returned time.Time
}

// look reports whether to return memory now.
func (i *idle) look(isMuch bool, now time.Time) bool {
	if i.looks++; !isMuch {
		i.looks = 0
	}
	if i.looks < idleLooks || now.Sub(i.returned) < returnInterval {
		return false
	}
	i.looks, i.returned = 0, now
	return true
}

func serverPercent(live uint64) int {
	switch {
	case live <= smallHeap:
		return smallPercent
	case live <= middleHeap:
		return middlePercent
	default:
		return largePercent
	}
}

func kcpPercent(live uint64) int {
	if live <= smallHeap {
		return smallPercent
	}
	return middlePercent
}
