// Package typehealth lists and watches objects for informers, on servers that may fail.
//
// A [Reader] reads the objects of one type. It reports whether that works, which an informer does
// not. It also limits the rate of requests. When a server ends a watch as expired, an informer
// starts again at once. Without a limit, a server that always does so would get requests as fast
// as it answers.
package typehealth

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"

	"rik.dev/rik/internal/pause"
)

const (
	// perSecond and burst limit the lists and watches that start. The further pages of a list
	// have their own limit.
	perSecond, burst           = 1, 10
	pagesPerSecond, pagesBurst = 20, 100
	// tolerated is how many failures in a row cause no pause, because the informer itself waits.
	tolerated = 3
	// maxPause limits the delay until a server that works again is asked.
	maxPause = 20 * time.Second
	// unreachablePause is the pause after a request that did not reach the server.
	unreachablePause = time.Second
	// established is how long a watch must stay open to show that it works.
	established = 5 * time.Second
	// timeout is how long a response may take before that counts as a fault.
	timeout = 30 * time.Second
	// pageTimeout limits one page of a list.
	pageTimeout = 2 * time.Minute
	// enough is how many failures in a row are reported. A single failure is the normal end of a
	// watch.
	enough = 2
)

// Source reads the objects.
type Source struct {
	List  func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error)
	Watch func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// Options are the options of a Reader. Only Source is required.
type Options struct {
	Source Source
	// Client is the client that Source uses. Test doubles declare their capabilities there.
	Client any
	// Unreachable reports whether an error means that the request did not reach the server. The
	// Reader repeats such a request when Reachable returns, without the growing pauses of the
	// informer.
	Unreachable func(error) bool
	// Reachable waits until the server may be asked again, or ctx ends.
	Reachable func(ctx context.Context)
	// Show returns the text of an error that may be shown.
	Show func(error) string
	// Changed is called when the result of Trouble may have changed. It must not block.
	Changed func()
}

// Reader reads the objects of one type from one server, for one informer.
type Reader struct {
	options      Options
	limit, pages flowcontrol.RateLimiter

	mu sync.Mutex
	// failures is the number of failures in a row, failing is when they began, and err is the
	// last one. mu guards these and all following fields.
	failures int
	failing  time.Time
	err      error
	// waiting is since when the reader waits for a response. It is zero if it does not wait.
	waiting time.Time
}

// Trouble is why objects cannot be read.
type Trouble struct {
	Since   time.Time
	Message string
}

// New creates a reader.
func New(options Options) *Reader {
	if options.Unreachable == nil {
		options.Unreachable = func(error) bool { return false }
	}
	if options.Show == nil {
		options.Show = error.Error
	}
	if options.Changed == nil {
		options.Changed = func() {}
	}
	return &Reader{
		options: options,
		limit:   flowcontrol.NewTokenBucketRateLimiter(perSecond, burst),
		pages:   flowcontrol.NewTokenBucketRateLimiter(pagesPerSecond, pagesBurst),
	}
}

// ListerWatcher returns the source for an informer.
func (r *Reader) ListerWatcher() cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc:  r.list,
		WatchFuncWithContext: r.watch,
	}, r.options.Client)
}

// Trouble returns why objects cannot be read. It is nil if they can be read, or if it is too
// early to know.
func (r *Reader) Trouble(now time.Time) *Trouble {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.failures >= enough:
		return &Trouble{Since: r.failing, Message: r.options.Show(r.err)}
	case !r.waiting.IsZero() && now.Sub(r.waiting) >= timeout:
		return &Trouble{Since: r.waiting, Message: fmt.Sprintf("the server has not answered for %s", now.Sub(r.waiting).Round(time.Second))}
	}
	return nil
}

func (r *Reader) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	limit := r.limit
	if options.Continue != "" {
		limit = r.pages
	}
	return ask(ctx, r, limit, false, func() (runtime.Object, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, pageTimeout, fmt.Errorf("the server has not answered a request for a list for %s", pageTimeout))
		defer cancel()
		defer r.answered()
		return r.options.Source.List(ctx, options)
	})
}

func (r *Reader) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	initial := options.SendInitialEvents != nil && *options.SendInitialEvents
	w, err := ask(ctx, r, r.limit, initial, func() (watch.Interface, error) { return r.options.Source.Watch(ctx, options) })
	if err != nil || !initial {
		r.answered()
	}
	if err != nil {
		return nil, err
	}
	return r.observe(ctx, w), nil
}

// ask makes a request when the limits allow it, and repeats it as long as it does not reach the
// server. If optional is true, the informer has an alternative when the request is refused. A
// refusal then does not count as a failure.
func ask[T any](ctx context.Context, r *Reader, limit flowcontrol.RateLimiter, optional bool, request func() (T, error)) (T, error) {
	for {
		if err := r.pause(ctx, limit); err != nil {
			var none T
			return none, err
		}
		answer, err := request()
		if err == nil || ctx.Err() != nil {
			return answer, err
		}
		if !r.options.Unreachable(err) {
			if !optional || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
				r.failed(err)
			}
			return answer, err
		}
		r.answered()
		if !pause.For(ctx, unreachablePause/2+rand.N(unreachablePause)) {
			return answer, err
		}
	}
}

// pause waits until the next request may be made.
func (r *Reader) pause(ctx context.Context, limit flowcontrol.RateLimiter) error {
	if r.options.Reachable != nil {
		r.options.Reachable(ctx)
	}
	if err := limit.Wait(ctx); err != nil {
		return fmt.Errorf("waiting for the next request: %w", err)
	}
	r.mu.Lock()
	failures := r.failures
	r.mu.Unlock()
	if failures > tolerated {
		longest := min(time.Second<<min(failures-tolerated-1, 10), maxPause)
		if !pause.For(ctx, longest/2+rand.N(longest/2)) {
			return context.Cause(ctx)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = time.Now()
	return nil
}

func (r *Reader) answered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = time.Time{}
}

func (r *Reader) failed(err error) {
	r.mu.Lock()
	if r.failures++; r.failures == 1 {
		r.failing = time.Now()
	}
	isNew := r.failures == enough
	r.err = err
	r.mu.Unlock()
	if isNew {
		r.options.Changed()
	}
}

// works records that objects are being read.
func (r *Reader) works() {
	r.mu.Lock()
	isNew := r.failures >= enough
	r.failures, r.failing, r.err, r.waiting = 0, time.Time{}, nil, time.Time{}
	r.mu.Unlock()
	if isNew {
		r.options.Changed()
	}
}

// observe returns a watch that reports its events to the reader.
func (r *Reader) observe(ctx context.Context, inner watch.Interface) watch.Interface {
	o := &observed{inner: inner, out: make(chan watch.Event), done: make(chan struct{})}
	go o.run(ctx, r)
	return o
}

// observed is a watch whose events the reader observes.
type observed struct {
	inner watch.Interface
	out   chan watch.Event
	done  chan struct{}
	stop  sync.Once
}

// Stop implements watch.Interface.
func (o *observed) Stop() {
	o.stop.Do(func() {
		close(o.done)
		o.inner.Stop()
	})
}

// ResultChan implements watch.Interface.
func (o *observed) ResultChan() <-chan watch.Event { return o.out }

func (o *observed) run(ctx context.Context, r *Reader) {
	defer close(o.out)
	timer := time.NewTimer(established)
	defer timer.Stop()
	works := false
	work := func() {
		if !works {
			works = true
			r.works()
		}
	}
	for {
		select {
		case <-o.done:
			return
		case <-ctx.Done():
			return
		case <-timer.C:
			r.mu.Lock()
			initial := !r.waiting.IsZero()
			r.mu.Unlock()
			if !initial {
				work()
			}
		case event, open := <-o.inner.ResultChan():
			switch {
			case !open && !works:
				r.failed(errEndedAtOnce)
				return
			case !open:
				return
			case event.Type == watch.Error:
				r.failed(apierrors.FromObject(event.Object))
			default:
				work()
			}
			select {
			case o.out <- event:
			case <-o.done:
				return
			}
		}
	}
}

// errEndedAtOnce: the server ended a watch before it sent an event.
var errEndedAtOnce = errors.New("the server ends every watch before it sends an event")
