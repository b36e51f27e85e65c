package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
)

func TestFramesRoundTrip(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	content := bytes.Repeat([]byte("x"), 3*Chunk+5)
	if err := errors.Join(WriteChunks(&b, Stdout, content), WriteFrame(&b, End, nil)); err != nil {
		t.Fatal(err)
	}
	r, got := NewReader(&b), []byte(nil)
	for {
		kind, n, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if kind == End {
			break
		}
		part, err := io.ReadAll(r)
		if err != nil || len(part) != n || kind != Stdout {
			t.Fatalf("a frame of kind %d with %d of %d bytes, %v", kind, len(part), n, err)
		}
		got = append(got, part...)
	}
	if !bytes.Equal(got, content) {
		t.Errorf("%d bytes came of %d", len(got), len(content))
	}
	if _, _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last frame: %v", err)
	}
}

func TestBoundsOfWriting(t *testing.T) {
	t.Parallel()
	if err := WriteFrame(io.Discard, Data, make([]byte, MaxMessage+1)); err == nil {
		t.Error("a frame beyond the bound is written")
	}
	if err := WriteLine(io.Discard, strings.Repeat("x", MaxMessage)); err == nil {
		t.Error("a line beyond the bound is written")
	}
}

// FuzzReader checks that reading ends for all input, within the limits, with the data or one of
// the known errors.
func FuzzReader(f *testing.F) {
	f.Add([]byte("{}\n\x04\x00\x00\x00\x02hi\x06\x00\x00\x00\x0a{\"code\":3}"))
	f.Add([]byte("\n\xff\xff\xff\xff\xff"))
	f.Add([]byte("{\"failure\":{\"text\":\"x\"}}\n\x01\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		var v struct{ Text string }
		if err := ReadLine(r, &v); err != nil && !known(err) {
			t.Fatalf("ReadLine: %v", err)
		}
		frames := NewReader(r)
		for {
			kind, n, err := frames.Next()
			if err != nil {
				if !known(err) {
					t.Fatalf("Next: %v", err)
				}
				return
			}
			if kind == 0 || kind >= kinds || n > MaxMessage {
				t.Fatalf("Next() = %d, %d", kind, n)
			}
			if content, err := io.ReadAll(frames); err == nil && len(content) != n || err != nil && !known(err) {
				t.Fatalf("%d of %d bytes, %v", len(content), n, err)
			}
		}
	})
}

func known(err error) bool {
	return errors.Is(err, ErrProtocol) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// TestGreetingAfterGarbage checks the greeting while the port contains data of an earlier
// session, in both directions.
func TestGreetingAfterGarbage(t *testing.T) {
	t.Parallel()
	node, guest := net.Pipe()
	garbage := strings.Repeat("\x00\x01\n"+helloLine+"\n"+goLine, 100)
	answered := make(chan error, 1)
	go func() {
		_, _ = io.WriteString(guest, garbage+readyLine+"of another\n"+hereLine+"of another\n")
		answered <- Answer(struct {
			io.Reader
			io.Writer
		}{io.MultiReader(strings.NewReader("\x00half a fra"), guest), guest})
	}()
	if err := Greet(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
}

// FuzzGuard checks that the guard passes on what it reads, or ends the session, and never fails
// in another way.
func FuzzGuard(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 'h', 'i'}, 3)
	f.Add([]byte{0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}, 1)
	f.Fuzz(func(t *testing.T, data []byte, step int) {
		g := &guard{ReadWriteCloser: struct {
			io.Reader
			io.WriteCloser
		}{bytes.NewReader(data), nil}}
		buf := make([]byte, 1+(step&0xff))
		var got []byte
		for {
			n, err := g.Read(buf)
			got = append(got, buf[:n]...)
			if err == nil {
				continue
			}
			if !bytes.HasPrefix(data, got) {
				t.Fatal("the data differs from the data that was sent")
			}
			if !known(err) {
				t.Fatal(err)
			}
			return
		}
	})
}
