package outage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

const (
	// retryAfter is the delay that clients are asked to wait, in seconds. Kubernetes' clients
	// retry 10 times without a message.
	retryAfter = 1
	// maxHeld bounds a response with status 500 that is checked before it is sent, in bytes.
	maxHeld = 64 << 10
)

// internals are parts of errors of the datastore's client. The API server puts the text of such
// an error into a response with status 500.
var internals = [][]byte{
	[]byte("rpc error: code = Unavailable"), []byte("rpc error: code = Unknown"), []byte("rpc error: code = DeadlineExceeded"),
	[]byte("rpc error: code = Canceled"), []byte("rpc error: code = Internal"),
	[]byte("etcdserver: request timed out"), []byte("etcdserver: leader changed"), []byte("etcdserver: no leader"),
	[]byte("etcdserver: server stopped"), []byte("etcdclient: no available endpoints"),
	[]byte("context deadline exceeded"), []byte(errUnreachable.Error()),
}

// noSpace is etcd's error when its quota is used up.
var noSpace = []byte("etcdserver: mvcc: database space exceeded")

// Wrap returns a handler that answers requests for objects during an outage. Other requests,
// and watches and other streams, are passed on.
func (m *Monitor) Wrap(next http.Handler, serializer runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || !info.IsResourceRequest {
			next.ServeHTTP(w, r)
			return
		}
		gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
		if since, out := m.outage(); out && !isStream(r, info) && !fromMemory(r, info) {
			refuse(unreachable(m.now().Sub(since)), serializer, gv, w, r)
			return
		}
		held, ended := &holder{ResponseWriter: w}, false
		if isStream(r, info) {
			next.ServeHTTP(responsewriter.WrapForHTTP1Or2(held), r)
		} else {
			ctx, done := m.follow(r.Context())
			defer done()
			next.ServeHTTP(responsewriter.WrapForHTTP1Or2(held), r.WithContext(ctx))
			// The response then only says that the context was canceled.
			ended = errors.Is(context.Cause(ctx), errUnreachable)
		}
		if !held.holds {
			return
		}
		switch {
		case bytes.Contains(held.body.Bytes(), noSpace):
			refuse(full(), serializer, gv, w, r)
		case ended, containsAny(held.body.Bytes()):
			for _, name := range []string{"Content-Length", "Content-Type"} {
				w.Header().Del(name)
			}
			refuse(unreachable(0), serializer, gv, w, r)
		default:
			held.release()
		}
	})
}

func isStream(r *http.Request, info *request.RequestInfo) bool {
	return info.Verb == "watch" || info.Subresource != "" && info.Subresource != "status" && info.Subresource != "scale" || r.Header.Get("Upgrade") != ""
}

// fromMemory reports whether the API server answers a request without the datastore, such as
// the first list of an informer.
func fromMemory(r *http.Request, info *request.RequestInfo) bool {
	return (info.Verb == "get" || info.Verb == "list") && r.URL.Query().Get("resourceVersion") == "0"
}

func containsAny(body []byte) bool {
	for _, mark := range internals {
		if bytes.Contains(body, mark) {
			return true
		}
	}
	return false
}

// unreachable returns the error for an outage. lasts is its duration so far, or 0 if that is
// not known.
func unreachable(lasts time.Duration) *apierrors.StatusError {
	text := "the cluster's datastore did not answer; see the server's log"
	if lasts > 0 {
		text = fmt.Sprintf("the cluster's datastore has not answered for %s; see the server's log", lasts.Round(time.Second))
	}
	err := apierrors.NewServiceUnavailable(text)
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	return err
}

func full() *apierrors.StatusError {
	err := apierrors.NewServiceUnavailable("the cluster's datastore is full: its quota is used up, so nothing can be stored; delete objects, or ask the administrator to start the server with a larger --datastore-quota")
	err.ErrStatus.Code = http.StatusInsufficientStorage
	return err
}

func refuse(err *apierrors.StatusError, serializer runtime.NegotiatedSerializer, gv schema.GroupVersion, w http.ResponseWriter, r *http.Request) {
	if seconds := err.Status().Details; seconds != nil && seconds.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(seconds.RetryAfterSeconds)))
	}
	responsewriters.ErrorNegotiated(err, serializer, gv, w, r)
}

// holder holds a response with status 500 back until it is complete.
type holder struct {
	http.ResponseWriter
	holds bool
	body  bytes.Buffer
}

var _ responsewriter.UserProvidedDecorator = (*holder)(nil)

// Unwrap implements responsewriter.UserProvidedDecorator.
func (h *holder) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (h *holder) WriteHeader(code int) {
	if code == http.StatusInternalServerError {
		h.holds = true
		return
	}
	h.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (h *holder) Write(data []byte) (int, error) {
	if !h.holds {
		return h.ResponseWriter.Write(data)
	}
	if h.body.Len()+len(data) > maxHeld {
		h.release()
		return h.ResponseWriter.Write(data)
	}
	return h.body.Write(data)
}

// release sends the response that was held back.
func (h *holder) release() {
	h.holds = false
	h.ResponseWriter.WriteHeader(http.StatusInternalServerError)
	_, _ = h.ResponseWriter.Write(h.body.Bytes()) //nolint:gosec // a JSON status of the API server; the client may be gone
	h.body.Reset()
}
