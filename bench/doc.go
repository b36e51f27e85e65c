// Package bench measures rik's guarantees on the built programs: the time from submission to
// Running, memory and time to ready, and placements over simulated nodes. With many clusters it
// measures how long objects take to reach them, the resources for each, and how long its types
// take. docs/specification.md has the guarantees and the results.
//
// Each benchmark measures its peer in the same run, because two runs on a busy machine cannot be
// compared. "make bench" runs all of them once. They need root and use their own network
// namespace and directories.
package bench
