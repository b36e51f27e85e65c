package bench

import (
	"path/filepath"
	"testing"
	"time"

	"rik.dev/rik/internal/testkit/rikcluster"
)

// BenchmarkKCPReady measures the time from the start of a kcp with its controllers until /readyz
// reports ready, on empty data and on existing data, and its memory at rest. In turn with it,
// the floor starts.
func BenchmarkKCPReady(b *testing.B) {
	begin(b)
	for range b.N {
		var floor, cold, warm []time.Duration
		for range starts {
			dir := b.TempDir()
			began := time.Now()
			_, stop := start(b, filepath.Join(dir, "floor.log"), filepath.Join(rikcluster.Bin(b), "floor"), "--data-dir", filepath.Join(dir, "floor"))
			floor = append(floor, awaitReady(b, "floor").Sub(began))
			stop()
			for _, times := range []*[]time.Duration{&cold, &warm} {
				began = time.Now()
				_, stop := launchKCP(b, dir)
				*times = append(*times, poll(b, often, "the kcp to be ready", func() bool { return isReady(b, kcpReadyz, "") }).Sub(began))
				stop()
			}
		}
		pid, stop := launchKCP(b, b.TempDir())
		poll(b, often, "the kcp to be ready", func() bool { return isReady(b, kcpReadyz, "") })
		settle(atRest)
		report(b, "kcp", percentile(cold, 50), read(b, pid))
		stop()
		b.ReportMetric(milliseconds(percentile(floor, 50)), "floor-ready-ms")
		b.ReportMetric(milliseconds(percentile(warm, 50)), "kcp-restart-ms")
		b.Logf("floor %v, kcp on empty data %v, kcp on its own %v", floor, cold, warm)
	}
	b.Logf("load at the end: %s", load())
}
