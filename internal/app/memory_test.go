package app

import "testing"

func TestCollectAt(t *testing.T) {
	t.Parallel()
	for live, want := range map[uint64]int{
		0: smallPercent, smallHeap: smallPercent, smallHeap + 1: middlePercent, middleHeap: middlePercent, middleHeap + 1: largePercent, 4 << 30: largePercent,
	} {
		if got := collectAt(live); got != want {
			t.Errorf("collectAt(%d) = %d, want %d", live, got, want)
		}
	}
}
