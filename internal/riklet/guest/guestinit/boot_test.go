package guestinit

import (
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// unconnected is a port that has no peer until a number of reads were made.
type unconnected struct {
	io.ReadWriteCloser
	reads, until int
}

func (l *unconnected) Read(b []byte) (int, error) {
	if l.reads++; l.reads <= l.until {
		return 0, io.EOF
	}
	return copy(b, "x"), nil
}

// TestPortWaitsForTheAnswer checks that the init of a guest without a peer reads its port often at
// first and seldom later. After the first byte, the end of the stream is final.
func TestPortWaitsForTheAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &unconnected{until: 100}
		p := &port{ReadWriteCloser: l}
		began := time.Now()
		if n, err := p.Read(make([]byte, 8)); n != 1 || err != nil {
			t.Errorf("Read() = %d, %v, want the byte that came in the end", n, err)
		}
		// 10, 20 and 40 ms, then 80 ms each.
		if took, want := time.Since(began), 70*time.Millisecond+97*channelTimeout; took != want {
			t.Errorf("100 looks took %v, want %v", took, want)
		}
		l.reads, l.until = 0, 1
		if n, err := p.Read(make([]byte, 8)); n != 0 || err != io.EOF { //nolint:errorlint // as it is
			t.Errorf("Read() = %d, %v after the node went, want the end", n, err)
		}
	})
}
