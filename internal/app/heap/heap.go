// Package heap keeps the memory of a control plane to what it needs: it tells Go's
// collector when to collect, and gives back what only a burst of work needed.
package heap

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// settled is how long after the start a control plane has made its lasting
	// parts: schemas, discovery and the first lists.
	settled      = 10 * time.Second
	tuneInterval = 500 * time.Millisecond
	// idleLooks are as many looks as a busy process collects within, so that what is
	// free at all of them is not about to be used: 10 s.
	idleLooks = 20
	// returnInterval bounds how often memory is given back: a collection of everything is
	// the price.
	returnInterval = time.Minute
)

// An idle control plane stays small; one with much to hold lets more garbage gather
// before it is collected, since a third of its CPU went into that while instances
// came by the thousand. Sizes are of what lives on the heap, in bytes.
const (
	smallHeap, smallPercent   = 96 << 20, 50
	middleHeap, middlePercent = 192 << 20, 100
	largePercent              = 200
)

// schemasFree is how much may lie unused in a kcp. What it holds are schemas above all,
// and taking many of them up leaves as much garbage as lasts.
const schemasFree = 64 << 20

// Policy says how a kind of control plane keeps its memory.
type Policy struct {
	// percent is the growth, of what lives, at which garbage is collected.
	percent func(live uint64) int
	// free is how much memory may lie unused for long; zero for any amount.
	free uint64
}

// Server is the policy of a rik cluster's control plane.
func Server() Policy { return Policy{percent: serverPercent} }

// KCP is the policy of a kcp.
func KCP() Policy { return Policy{percent: kcpPercent, free: schemasFree} }

// Tune returns the memory that only the start needed to the machine, since a process
// that does little afterward would not collect it for minutes, and then keeps the
// collector to the policy. It ends with ctx. Whoever sets GOGC or GOMEMLIMIT (package
// runtime) wants the collector otherwise, and has it so.
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

// idle notices that much memory has been free for long.
type idle struct {
	looks    int
	returned time.Time
}

// look says whether it is time to give memory back.
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
