package main

import (
	"fmt"
	"io"
	"time"
)

// shownFailures is the number of failures that are printed in full.
const shownFailures = 3

// count has the results of requests.
type count struct {
	total, failures, elsewhere int
	by                         map[string]int // answers by address
	first, last                time.Time      // answers
	gap                        time.Duration  // the longest time between two answers
	gapAt                      time.Time      // its beginning
	reported                   []string       // the first failures
}

// answered counts an answer. elsewhere means that another address did not answer before.
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

// wait records the time since the last answer, if it is the longest so far.
func (c *count) wait(now time.Time) {
	if !c.last.IsZero() && now.Sub(c.last) > c.gap {
		c.gap, c.gapAt = now.Sub(c.last), c.last
	}
}

// print writes the results in lines of NAME VALUE, which scripts can read. The time since the last
// answer counts too.
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
