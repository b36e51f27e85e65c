//go:build !race

package plan

// raceEnabled makes for fewer cases: each takes many times as long, and nothing in the
// package is concurrent.
const raceEnabled = false
