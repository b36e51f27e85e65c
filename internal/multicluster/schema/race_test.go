//go:build race

package schema

// raceEnabled says that the race detector makes everything eight times as expensive.
const raceEnabled = true
