package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/store"
	"rik.dev/rik/internal/controllerterm"
)

// errNotActive refuses an action that only the active controller may do.
var errNotActive = errors.New("this is not the active controller any more: its lease has expired")

// leadership stores until when this controller is active. It uses the monotonic clock, which
// continues while a process is stopped and which cannot be set. A controller that was stopped
// past its lease therefore detects that before its next write, and not only when its elector
// does.
//
// The lease may end between the check of the clock and the arrival of a write at the datastore.
// Each write has the rest of the lease as its deadline, and etcd refuses all writes of an older
// term. With a SQL datastore, a process that is stopped exactly in between can write once more.
type leadership struct {
	mu     sync.Mutex
	number int64
	// until is the end of the lease. The zero time means no end.
	until time.Time
	held  bool
}

// begin starts a term, whose lease may already have been renewed.
func (l *leadership) begin(number int64, ends bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.number, l.held = number, true
	if !ends {
		l.until = time.Time{}
	}
}

// renewed moves the end of the lease. at is the time of the renewal request.
func (l *leadership) renewed(at time.Time, lease time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = at.Add(lease)
}

// end ends a term after its work has ended.
func (l *leadership) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = false
}

// check returns the term and the rest of the lease. A rest of 0 means no end.
func (l *leadership) check() (number int64, left time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.held {
		return 0, 0, errNotActive
	}
	if l.until.IsZero() {
		return l.number, 0, nil
	}
	if left = time.Until(l.until); left <= 0 {
		return 0, 0, errNotActive
	}
	return l.number, left, nil
}

// within returns a context for one write of the term. The context ends with the lease.
func (l *leadership) within(ctx context.Context) (context.Context, context.CancelFunc, error) {
	number, left, err := l.check()
	if err != nil {
		return nil, nil, err
	}
	ctx = controllerterm.With(ctx, number)
	if left == 0 {
		return ctx, func() {}, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, left, errNotActive)
	return ctx, cancel, nil
}

// lock is the elector's Lease. It records the renewals.
type lock struct {
	resourcelock.Interface
	leads    *leadership
	duration time.Duration
}

// Create implements resourcelock.Interface.
func (l lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	at := time.Now()
	err := l.Interface.Create(ctx, record)
	l.note(record, at, err)
	return err
}

// Update implements resourcelock.Interface.
func (l lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	at := time.Now()
	err := l.Interface.Update(ctx, record)
	l.note(record, at, err)
	return err
}

func (l lock) note(record resourcelock.LeaderElectionRecord, at time.Time, err error) {
	if err == nil && record.HolderIdentity == l.Identity() {
		l.leads.renewed(at, l.duration)
	}
}

// active passes only the active controller's writes to the API server, and adds their term.
type active struct {
	inner http.RoundTripper
	leads *leadership
}

// RoundTrip implements http.RoundTripper.
func (a active) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return a.inner.RoundTrip(r)
	}
	ctx, cancel, err := a.leads.within(r.Context())
	if err != nil {
		return nil, err
	}
	r = r.Clone(ctx)
	controllerterm.Set(r.Header, controllerterm.From(ctx))
	answer, err := a.inner.RoundTrip(r)
	if err != nil {
		cancel()
		return nil, err
	}
	answer.Body = released{answer.Body, cancel}
	return answer, nil
}

// released cancels the context of the deadline once the response was read.
type released struct {
	io.ReadCloser
	release context.CancelFunc
}

// Close implements io.Closer.
func (r released) Close() error {
	defer r.release()
	return r.ReadCloser.Close()
}

// activeStore allows only the active controller to write Instances.
type activeStore struct {
	inner store.Instances
	leads *leadership
}

func (a activeStore) one(ctx context.Context, in *rikv1alpha1.Instance, write func(context.Context, *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error)) (*rikv1alpha1.Instance, error) {
	ctx, cancel, err := a.leads.within(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	return write(ctx, in)
}

// Create implements store.Instances.
func (a activeStore) Create(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	return a.one(ctx, in, a.inner.Create)
}

// Bind implements store.Instances.
func (a activeStore) Bind(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	return a.one(ctx, in, a.inner.Bind)
}

// Update implements store.Instances.
func (a activeStore) Update(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	return a.one(ctx, in, a.inner.Update)
}

// UpdateStatus implements store.Instances.
func (a activeStore) UpdateStatus(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	return a.one(ctx, in, a.inner.UpdateStatus)
}

// Delete implements store.Instances.
func (a activeStore) Delete(ctx context.Context, namespace, name string, uid types.UID, grace *int64) error {
	ctx, cancel, err := a.leads.within(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	return a.inner.Delete(ctx, namespace, name, uid, grace)
}

// termBegun returns the term that has begun, if a write was refused because its own term is
// over.
func termBegun(err error) (int64, bool) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return 0, false
	}
	for _, cause := range status.Status().Details.Causes {
		if string(cause.Type) == controllerterm.CauseOver {
			number, err := strconv.ParseInt(cause.Message, 10, 64)
			return number, err == nil
		}
	}
	return 0, false
}

// establish announces the term to the datastore. A Lease that was deleted, or restored alone,
// may count below the datastore's term. The term is then raised above that, and the next
// attempt continues there.
func (c *Controller) establish(ctx context.Context) error {
	// Any write announces the term. This one changes nothing.
	err := ensureNamespace(ctx, c.acting, Namespace)
	if begun, over := termBegun(err); over {
		if err := raiseTerm(ctx, c.client, begun); err != nil {
			return err
		}
		return fmt.Errorf("%w: the term of the lease is below term %d, which the datastore contains", errRaised, begun)
	}
	return err
}
