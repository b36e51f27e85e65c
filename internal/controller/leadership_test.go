package controller

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/store"
	"rik.dev/rik/internal/controllerterm"
)

// server records the requests that reach the API server.
type server struct {
	terms []int64
	wait  time.Duration
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-time.After(s.wait):
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	}
	s.terms = append(s.terms, controllerterm.Of(r.Header))
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("{}"))}, nil
}

func request(t *testing.T, method string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "https://127.0.0.1/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func send(t *testing.T, a active, method string) error {
	t.Helper()
	answer, err := a.RoundTrip(request(t, method))
	if err == nil {
		err = answer.Body.Close()
	}
	return err
}

// TestNothingIsWrittenAfterTheLease: a controller whose lease has ended writes nothing, even if
// its elector has not detected that. A write that takes longer than the rest of the lease is
// canceled.
func TestNothingIsWrittenAfterTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, leads := &server{}, &leadership{}
		a := active{s, leads}
		if err := send(t, a, http.MethodPost); !errors.Is(err, errNotActive) {
			t.Errorf("before any term: %v, want it refused", err)
		}
		leads.renewed(time.Now(), leaseDuration)
		leads.begin(7, true)
		time.Sleep(leaseDuration - time.Second)
		if err := send(t, a, http.MethodPut); err != nil {
			t.Errorf("within the lease: %v", err)
		}
		s.wait = 2 * time.Second
		if err := send(t, a, http.MethodPatch); !errors.Is(err, errNotActive) {
			t.Errorf("a write that outlasts the lease: %v, want it given up", err)
		}
		s.wait = 0
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			if err := send(t, a, method); !errors.Is(err, errNotActive) {
				t.Errorf("%s after the lease: %v, want it refused", method, err)
			}
		}
		if err := send(t, a, http.MethodGet); err != nil {
			t.Errorf("reading: %v", err)
		}
		leads.renewed(time.Now(), leaseDuration)
		if err := send(t, a, http.MethodDelete); err != nil {
			t.Errorf("after the lease was renewed: %v", err)
		}
		leads.end()
		if err := send(t, a, http.MethodDelete); !errors.Is(err, errNotActive) {
			t.Errorf("after the term: %v, want it refused", err)
		}
		want := []int64{7, 0, 7}
		if len(s.terms) != 3 || s.terms[0] != want[0] || s.terms[1] != want[1] || s.terms[2] != want[2] {
			t.Errorf("the server saw terms %v, want %v", s.terms, want)
		}
	})
}

// TestASingleControllersTermHasNoEnd: without leader election, the lease of a controller does
// not end.
func TestASingleControllersTermHasNoEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		leads := &leadership{}
		leads.begin(3, false)
		time.Sleep(time.Hour)
		if number, left, err := leads.check(); number != 3 || left != 0 || err != nil {
			t.Errorf("check() = %d, %s, %v", number, left, err)
		}
	})
}

type noted struct {
	store.Instances
	terms []int64
}

func (n *noted) Create(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	n.terms = append(n.terms, controllerterm.From(ctx))
	return in, nil
}

func TestInstancesAreWrittenOfATerm(t *testing.T) {
	t.Parallel()
	inner, leads := &noted{}, &leadership{}
	s := activeStore{inner, leads}
	if _, err := s.Create(t.Context(), &rikv1alpha1.Instance{}); !errors.Is(err, errNotActive) {
		t.Errorf("Create before a term: %v, want it refused", err)
	}
	leads.begin(5, false)
	if _, err := s.Create(t.Context(), &rikv1alpha1.Instance{}); err != nil || len(inner.terms) != 1 || inner.terms[0] != 5 {
		t.Errorf("Create = %v, of terms %v, want term 5", err, inner.terms)
	}
}

// brokenLock is a Lease that cannot be written.
type brokenLock struct {
	resourcelock.Interface
	err error
}

func (b brokenLock) Update(context.Context, resourcelock.LeaderElectionRecord) error { return b.err }
func (b brokenLock) Identity() string                                                { return "me" }

// TestWhatRenewsTheLease: only a successful renewal by this controller moves the end of the
// lease.
func TestWhatRenewsTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		leads := &leadership{}
		leads.renewed(time.Now(), leaseDuration)
		leads.begin(1, true)
		time.Sleep(leaseDuration / 2)
		_ = lock{brokenLock{err: errors.New("no answer")}, leads, leaseDuration}.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me"})
		_ = lock{brokenLock{}, leads, leaseDuration}.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: ""})
		if _, left, _ := leads.check(); left != leaseDuration/2 {
			t.Errorf("left %s, want %s: nothing was renewed", left, leaseDuration/2)
		}
		_ = lock{brokenLock{}, leads, leaseDuration}.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me"})
		if _, left, _ := leads.check(); left != leaseDuration {
			t.Errorf("left %s, want %s", left, leaseDuration)
		}
	})
}
