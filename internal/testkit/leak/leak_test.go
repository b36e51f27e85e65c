package leak

import (
	"strings"
	"testing"
	"time"
)

func TestAfterFindsWhatIsLeft(t *testing.T) {
	if left := await(timeout); len(left) > 0 {
		t.Fatalf("before the test there are %q", left)
	}
	begun, end := make(chan struct{}), make(chan struct{})
	go waits(begun, end)
	<-begun // before that, it is in none of its functions
	if left := await(time.Millisecond); len(left) != 1 || !strings.Contains(left[0], "leak.waits") {
		t.Errorf("Running() = %q, want the one that waits", left)
	}
	if code := After(3); code != 3 {
		t.Errorf("After(3) = %d: tests that failed have said enough", code)
	}
	close(end)
	if code := After(0); code != 0 {
		t.Errorf("After(0) = %d once it has ended", code)
	}
}

func waits(begun chan<- struct{}, end <-chan struct{}) {
	close(begun)
	<-end
}
