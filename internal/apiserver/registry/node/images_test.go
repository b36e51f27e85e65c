package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/registry/instance"
	"rik.dev/rik/internal/rpc/nodeimage"
	"rik.dev/rik/internal/rpc/nodev1"
)

type everyNode struct{}

func (everyNode) Get(context.Context, string, *metav1.GetOptions) (runtime.Object, error) {
	return &rik.Node{}, nil
}

// refusing is a node that reads the first piece of an archive and ends the session with an error.
type refusing struct {
	problem nodev1.Problem
	first   chan struct{}
}

func (r *refusing) Open(context.Context, string, *nodev1.OpenSession) (instance.Session, error) {
	return r, nil
}

func (r *refusing) Send(*nodev1.SessionInput) error {
	select {
	case r.first <- struct{}{}:
	default:
	}
	return nil
}

func (r *refusing) Recv() (*nodev1.SessionOutput, error) {
	<-r.first
	return nodev1.NewEnd(&nodev1.SessionEnd{Error: "the archive is damaged", Problem: r.problem}), nil
}

func (r *refusing) Close() {}

// answered is the error of a request.
type answered struct{ err error }

func (s *answered) Object(int, runtime.Object) {}
func (s *answered) Error(err error)            { s.err = err }

// Over HTTP/1, a node's refusal ends the request of a client that sends nothing more.
func TestRefusalsDoNotWaitForTheClient(t *testing.T) {
	t.Parallel()
	images := &Images{nodes: everyNode{}, sessions: &refusing{first: make(chan struct{}, 1)}}
	ended := make(chan error, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := &answered{}
		h, err := images.Connect(r.Context(), "n1", nil, s)
		if err != nil {
			t.Error(err)
			return
		}
		h.ServeHTTP(w, r)
		ended <- s.err
	}))
	defer server.Close()
	body, stalled := io.Pipe()
	defer func() { _ = stalled.Close() }()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/?"+nodeimage.ParamImport+"=", body)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		answer, err := server.Client().Do(request)
		if err == nil {
			_ = answer.Body.Close()
		}
	}()
	if _, err := io.WriteString(stalled, "half an archive"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), `node "n1": the archive is damaged`) {
			t.Errorf("the request ended with %v, want the refusal", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the request waits for the client")
	}
}

func TestStatusOf(t *testing.T) {
	t.Parallel()
	for problem, want := range map[nodev1.Problem]int32{
		nodev1.Problem_PROBLEM_UNKNOWN_INSTANCE: 501, // an older riklet
		nodev1.Problem_PROBLEM_UNSUPPORTED:      501,
		nodev1.Problem_PROBLEM_NOT_PRESENT:      404,
		nodev1.Problem_PROBLEM_IN_USE:           409,
		nodev1.Problem_PROBLEM_INVALID:          400,
		nodev1.Problem_PROBLEM_UNSPECIFIED:      500,
	} {
		err := statusOf("n1", fmt.Errorf("answering: %w", &endError{&nodev1.SessionEnd{Error: "why", Problem: problem}}))
		var coded apierrors.APIStatus
		if !errors.As(err, &coded) || coded.Status().Code != want || !strings.Contains(err.Error(), `"n1"`) {
			t.Errorf("%v = %v, want %d", problem, err, want)
		}
		if problem == nodev1.Problem_PROBLEM_UNKNOWN_INSTANCE && !strings.Contains(err.Error(), "update it") {
			t.Errorf("an older riklet = %v, want the next step", err)
		}
	}
	if err := statusOf("n1", errors.New("lost")); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("a lost connection = %v, want 503", err)
	}
	if err := statusOf("n1", nil); err != nil {
		t.Errorf("no error = %v", err)
	}
}

// Sessions to nodes that cannot be opened are errors of the API.
func TestNodesThatDoNotOpen(t *testing.T) {
	t.Parallel()
	for sentinel, want := range map[error]int32{instance.ErrNotConnected: 503, instance.ErrNotOpened: 504, instance.ErrBusy: 429, errors.New("other"): 500} {
		_, err := (&Images{sessions: failing{sentinel}}).open(t.Context(), "n1", nil)
		var coded apierrors.APIStatus
		if !errors.As(err, &coded) || coded.Status().Code != want {
			t.Errorf("%v = %v, want %d", sentinel, err, want)
		}
	}
	if _, err := (&Images{}).open(t.Context(), "n1", nil); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("a server without nodes = %v, want 503", err)
	}
}

type failing struct{ err error }

func (f failing) Open(context.Context, string, *nodev1.OpenSession) (instance.Session, error) {
	return nil, f.err
}
