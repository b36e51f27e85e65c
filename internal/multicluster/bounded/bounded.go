// Package bounded limits the harm that a server can do to its clients. The API servers of
// physical clusters are not trusted. Clients read a response completely before they parse it, and
// discovery takes no context. Without limits, an endless response would use all memory, and a
// missing response would block its caller forever.
package bounded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// MaxEvent is the maximum size of one event of a watch, in bytes. It is the limit of the client,
// which reads an event completely before it checks the size.
const MaxEvent = 16 << 20

// ErrTooLarge means that a response, or the object in it, exceeds the size limit.
var ErrTooLarge = errors.New("larger than is read")

// Answers limits every response to a number of bytes, after decompression. A watch may be
// endless, but each of its events has at most [MaxEvent] bytes.
func Answers(next http.RoundTripper, limit int64) http.RoundTripper {
	return answers{next: next, limit: limit}
}

type answers struct {
	next  http.RoundTripper
	limit int64
}

// RoundTrip implements http.RoundTripper.
func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := a.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	switch watch, _ := strconv.ParseBool(r.URL.Query().Get("watch")); {
	case !watch:
		answer.Body = &whole{ReadCloser: answer.Body, limit: a.limit, left: a.limit}
	case !isProtobuf(answer.Header): // protobuf frames start with their length
		answer.Body = &events{ReadCloser: answer.Body}
	}
	return answer, nil
}

// WrappedRoundTripper lets client-go find the wrapped transport.
func (a answers) WrappedRoundTripper() http.RoundTripper { return a.next }

func isProtobuf(header http.Header) bool {
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	return err == nil && strings.HasPrefix(kind, "application/vnd.kubernetes.protobuf")
}

// whole returns an error at the limit, where io.LimitedReader would return the end of the file.
type whole struct {
	io.ReadCloser
	limit, left int64
}

func (w *whole) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if w.left -= int64(n); w.left < 0 {
		return 0, fmt.Errorf("an answer of more than %d bytes: %w", w.limit, ErrTooLarge)
	}
	return n, err
}

// events counts the bytes of each JSON document in a stream.
type events struct {
	io.ReadCloser
	size, depth     int
	quoted, escaped bool
}

func (e *events) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	for _, b := range p[:n] {
		if e.size++; e.size > MaxEvent {
			return 0, fmt.Errorf("an event of more than %d bytes: %w", MaxEvent, ErrTooLarge)
		}
		e.count(b)
	}
	return n, err
}

func (e *events) count(b byte) {
	switch {
	case e.escaped:
		e.escaped = false
	case e.quoted:
		e.escaped, e.quoted = b == '\\', b != '"'
	case b == '"':
		e.quoted = true
	case b == '{', b == '[':
		e.depth++
	case b == '}', b == ']':
		if e.depth--; e.depth <= 0 {
			e.size, e.depth = 0, 0
		}
	}
}

// Within ends every request when a context ends.
func Within(ctx context.Context, next http.RoundTripper) http.RoundTripper {
	return within{ctx: ctx, next: next}
}

type within struct {
	ctx  context.Context //nolint:containedctx // for who takes none
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (w within) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(w.ctx, cancel)
	end := func() { stop(); cancel() }
	answer, err := w.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		end()
		return nil, err
	}
	answer.Body = &ending{ReadCloser: answer.Body, end: end}
	return answer, nil
}

// WrappedRoundTripper lets client-go find the wrapped transport.
func (w within) WrappedRoundTripper() http.RoundTripper { return w.next }

type ending struct {
	io.ReadCloser
	end func()
}

func (e *ending) Close() error {
	defer e.end()
	return e.ReadCloser.Close()
}

// Discovery returns a discovery client whose requests end with a context.
func Discovery(ctx context.Context, config *rest.Config, client *http.Client) (*discovery.DiscoveryClient, error) {
	inner := *client
	if inner.Transport == nil {
		inner.Transport = http.DefaultTransport
	}
	inner.Transport = Within(ctx, inner.Transport)
	d, err := discovery.NewDiscoveryClientForConfigAndClient(config, &inner)
	if err != nil {
		return nil, fmt.Errorf("preparing discovery: %w", err)
	}
	return d, nil
}
