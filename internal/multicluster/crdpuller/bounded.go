package crdpuller

import (
	"context"
	"fmt"
	"io"
	"net/http"
)

// maxAnswerBytes is ten times the OpenAPI document of all of Kubernetes.
const maxAnswerBytes = 64 << 20

// bounded limits the size of answers, and ends requests with a context: discovery's
// methods take none.
type bounded struct {
	ctx  context.Context //nolint:containedctx // see above
	next http.RoundTripper
}

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(b.ctx, cancel)
	answer, err := b.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		stop()
		cancel()
		return nil, err
	}
	answer.Body = &boundedBody{ReadCloser: answer.Body, left: maxAnswerBytes, end: func() { stop(); cancel() }}
	return answer, nil
}

// boundedBody fails where a limited reader would say that all is read.
type boundedBody struct {
	io.ReadCloser
	left int64
	end  func()
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("an answer of more than %d bytes: %w", maxAnswerBytes, ErrTooLarge)
	}
	return n, err
}

func (b *boundedBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// maxRedirects is one more than any API server makes.
const maxRedirects = 2

// stay follows no redirect to elsewhere: credentials are for the server that was named,
// and the transport would add them wherever a redirect leads. The server itself sends
// who asks for an OpenAPI document that has changed to the new one.
func stay(r *http.Request, before []*http.Request) error {
	first := before[0].URL
	if r.URL.Scheme != first.Scheme || r.URL.Host != first.Host || len(before) > maxRedirects {
		return http.ErrUseLastResponse
	}
	return nil
}
