//go:build !race

// Package race reports whether the race detector is on. The detector makes each generated case
// of a pure package many times as expensive, although nothing is concurrent there. hack/test.sh
// runs those packages a second time without it.
package race

// Enabled reports whether this program was built with the race detector.
const Enabled = false
