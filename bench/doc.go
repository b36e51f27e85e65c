// Package bench measures what rik promises, on the built programs: the time from
// submission to Running, memory and time to ready, and placements over simulated
// nodes; and of many clusters how long objects take to them, what each costs and how
// long its types take. docs/specification.md has the promises and what came out.
//
// Each benchmark measures its peer in the same run, because two runs on a busy
// machine say nothing about each other. "make bench" runs them all, once; they
// need root and use a network namespace and folders of their own.
package bench
