//go:build race

package race

// Enabled reports whether this program was built with the race detector.
const Enabled = true
