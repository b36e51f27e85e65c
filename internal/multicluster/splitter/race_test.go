//go:build race

package splitter

// raceEnabled makes for fewer cases: each takes many times as long.
const raceEnabled = true
