package proxy

import (
	"fmt"
	"testing"
)

// BenchmarkRender measures the part of a change whose cost grows with the number of services.
func BenchmarkRender(b *testing.B) {
	for _, n := range []int{10, 1000, 10000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			in := input(large(n))
			b.ReportAllocs()
			for b.Loop() {
				Render(in)
			}
		})
	}
}
