package logs

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/scheme"
)

func TestLogFlags(t *testing.T) {
	t.Parallel()
	f := &logFlags{tail: 5, since: 1500 * time.Millisecond}
	if err := f.complete(); err != nil {
		t.Fatal(err)
	}
	query, err := scheme.ParameterCodec.EncodeParameters(&f.options, rikv1alpha1.SchemeGroupVersion)
	if err != nil || query.Encode() != "sinceSeconds=2&tailLines=5" {
		t.Errorf("query = %q, %v", query.Encode(), err)
	}
	all := &logFlags{tail: -1}
	if err := all.complete(); err != nil || all.options.TailLines != nil {
		t.Errorf("complete() = %v, tail %v; want none", err, all.options.TailLines)
	}
	for _, bad := range []*logFlags{{tail: -2}, {since: -1}, {options: rikv1alpha1.InstanceLogOptions{Follow: true, Previous: true}}} {
		if err := bad.complete(); err == nil {
			t.Errorf("complete(%+v) = nil, want an error", bad)
		}
	}
}

func TestCopyLines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<20)
	var out bytes.Buffer
	w := &lineWriter{out: &out}
	if err := w.copyLines("[a] ", strings.NewReader("one\n"+long+"\nlast")); err != nil {
		t.Fatal(err)
	}
	if want := "[a] one\n[a] " + long + "\n[a] last\n"; out.String() != want {
		t.Errorf("copyLines wrote %d bytes, want %d", out.Len(), len(want))
	}
}

// Lines that have arrived are written together, without waiting for the next one.
func TestLinesAreWrittenWhenTheyCome(t *testing.T) {
	t.Parallel()
	from, to := io.Pipe()
	out := make(chan string)
	done := make(chan error, 1)
	go func() { done <- (&lineWriter{out: chanWriter(out)}).copyLines("[a] ", from) }()
	for _, step := range []struct{ comes, want string }{{"one\ntwo\nthr", "[a] one\n[a] two\n"}, {"ee\n", "[a] three\n"}} {
		if _, err := io.WriteString(to, step.comes); err != nil {
			t.Fatal(err)
		}
		if got := <-out; got != step.want {
			t.Errorf("after %q: %q, want %q", step.comes, got, step.want)
		}
	}
	_ = to.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

type chanWriter chan string

func (w chanWriter) Write(p []byte) (int, error) {
	w <- string(p)
	return len(p), nil
}
