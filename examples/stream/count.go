package main

import (
	"fmt"
	"io"
	"time"
)

// shownFailures are how many failures are told in full.
const shownFailures = 3

// count is what became of requests.
type count struct {
	total, failures, elsewhere int
	by                         map[string]int // answers by address
	first, last                time.Time      // answers
	gap                        time.Duration  // the longest between two answers
	gapAt                      time.Time      // its begin
	reported                   []string       // the first failures
}

// answered counts an answer; elsewhere is whether another address was asked in vain.
func (c *count) answered(address string, elsewhere bool, now time.Time) {
	c.total++
	c.by[address]++
	if elsewhere {
		c.elsewhere++
	}
	if c.first.IsZero() {
		c.first = now
	}
	c.wait(now)
	c.last = now
}

func (c *count) failed(err error, now time.Time) {
	c.total++
	c.failures++
	if len(c.reported) < shownFailures {
		c.reported = append(c.reported, fmt.Sprintf("%s: %v", now.UTC().Format(time.TimeOnly), err))
	}
}

// wait notes how long the last answer is ago, if nothing was longer.
func (c *count) wait(now time.Time) {
	if !c.last.IsZero() && now.Sub(c.last) > c.gap {
		c.gap, c.gapAt = now.Sub(c.last), c.last
	}
}

// print says it in lines of NAME VALUE, which a script can read too. A time without an
// answer counts although it is not over.
func (c *count) print(out io.Writer, addresses []string, now time.Time) {
	c.wait(now)
	fmt.Fprintf(out, "requests  %d\n", c.total)
	fmt.Fprintf(out, "failures  %d\n", c.failures)
	fmt.Fprintf(out, "elsewhere %d answered by another address than the first requested one\n", c.elsewhere)
	for _, address := range addresses {
		fmt.Fprintf(out, "answers   %d by %s\n", c.by[address], address)
	}
	fmt.Fprintf(out, "gap       %s is the longest time without an answer", c.gap.Round(time.Millisecond))
	if !c.gapAt.IsZero() {
		fmt.Fprintf(out, ", from %s on", c.gapAt.UTC().Format(time.TimeOnly))
	}
	fmt.Fprintln(out)
	for _, reported := range c.reported {
		fmt.Fprintf(out, "failed    %s\n", reported)
	}
}
