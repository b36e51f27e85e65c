package wakeup

import (
	"sync"
	"testing"
)

func TestSignal(t *testing.T) {
	t.Parallel()
	s := New()
	if s.Clear() {
		t.Error("a new signal has a request")
	}
	var wakers sync.WaitGroup
	for range 10 {
		wakers.Go(s.Wake)
	}
	wakers.Wait()
	select {
	case <-s:
	default:
		t.Error("a request from before the receiver looked is lost")
	}
	if s.Clear() {
		t.Error("ten requests count as more than one")
	}
	s.Wake()
	if !s.Clear() {
		t.Error("Clear() = false, want true after Wake")
	}
}

func TestNil(t *testing.T) {
	t.Parallel()
	var s Signal
	s.Wake()
	if s.Clear() {
		t.Error("a nil signal has a request")
	}
}
