//go:build !race

// Package race tells tests whether the race detector is on: it makes each generated case
// of a pure package many times as expensive, where nothing is concurrent. hack/test.sh
// runs those packages a second time without it.
package race

// Enabled says whether this program was built with the race detector.
const Enabled = false
