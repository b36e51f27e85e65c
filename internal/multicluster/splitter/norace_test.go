//go:build !race

package splitter

const raceEnabled = false
