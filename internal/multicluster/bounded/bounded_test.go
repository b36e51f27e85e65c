package bounded_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/multicluster/bounded"
)

// serve answers every request with the same handler.
func serve(t *testing.T, answer http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	return server
}

// read reads a response completely, and returns its size.
func read(t *testing.T, transport http.RoundTripper, url string) (int64, error) {
	t.Helper()
	answer, err := (&http.Client{Transport: transport}).Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	return io.Copy(io.Discard, answer.Body)
}

func TestAnswersEnd(t *testing.T) {
	t.Parallel()
	server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 1<<10)); err != nil {
				return
			}
		}
	})
	if n, err := read(t, bounded.Answers(http.DefaultTransport, 1<<16), server.URL); !errors.Is(err, bounded.ErrTooLarge) || n > 1<<16 {
		t.Errorf("an endless answer: %d bytes, %v", n, err)
	}
}

func TestEventsEndAndWatchesDoNot(t *testing.T) {
	t.Parallel()
	// Brackets, quotes and line ends in strings do not end an event.
	event := `{"type":"ADDED","object":{"text":"}]\\\"}","list":[{},{}]}}`
	long := `{"object":{"a":"` + strings.Repeat("x", bounded.MaxEvent/2) + `"}}`
	for _, tc := range []struct {
		name, start, repeated, kind string
		times                       int
		want                        error
	}{
		{name: "many events", repeated: event + "\n", times: bounded.MaxEvent/len(event) + 10},
		{name: "large events", repeated: long, times: 3},
		{name: "an endless string", start: `{"a":"`, repeated: strings.Repeat("}", 1<<10), times: 1 << 20, want: bounded.ErrTooLarge},
		{name: "endless lines in an event", start: `{`, repeated: strings.Repeat("\n", 1<<10), times: 1 << 20, want: bounded.ErrTooLarge},
		{name: "protobuf", kind: "application/vnd.kubernetes.protobuf;stream=watch", repeated: strings.Repeat("{", 1<<10), times: bounded.MaxEvent>>10 + 10},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", tc.kind)
				_, err := io.WriteString(w, tc.start)
				for i := 0; i < tc.times && err == nil; i++ {
					_, err = io.WriteString(w, tc.repeated)
				}
			})
			n, err := read(t, bounded.Answers(http.DefaultTransport, 1), server.URL+"/api/v1/configmaps?watch=true")
			if !errors.Is(err, tc.want) {
				t.Errorf("%d bytes and %v, want %v", n, err, tc.want)
			}
			if whole := int64(len(tc.start) + tc.times*len(tc.repeated)); tc.want == nil && n != whole {
				t.Errorf("%d bytes came of %d", n, whole)
			}
		})
	}
}

// A server that does not answer blocks no caller longer than its context.
func TestDiscoveryEndsWithItsContext(t *testing.T) {
	t.Parallel()
	for _, headers := range []bool{false, true} {
		t.Run(fmt.Sprintf("headers %v", headers), func(t *testing.T) {
			t.Parallel()
			asked, end := make(chan struct{}, 8), make(chan struct{})
			server := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if headers {
					w.WriteHeader(http.StatusOK)
					w.(http.Flusher).Flush()
				}
				asked <- struct{}{}
				select {
				case <-r.Context().Done():
				case <-end:
				}
			})
			t.Cleanup(func() { close(end) })
			ctx, cancel := context.WithCancel(t.Context())
			d, err := bounded.Discovery(ctx, &rest.Config{Host: server.URL}, &http.Client{})
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				_, _, err := d.ServerGroupsAndResources()
				done <- err
			}()
			<-asked
			cancel()
			if err := <-done; err == nil {
				t.Error("an answer that never came was one")
			}
		})
	}
}
