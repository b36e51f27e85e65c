// Package reconcile is the one shape in which rik's components work on keys:
// a queue that holds a key at most once, a bounded number of workers, and a
// growing delay after errors.
//
// It is level-based: a key says that something about an object may have
// changed, never what; the function looks at the present state. It owns no
// informer and no client.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/workqueue"
)

// Delays after errors when Options name none.
const (
	DefaultMinBackoff = 50 * time.Millisecond
	DefaultMaxBackoff = 30 * time.Second
)

// Func brings one key's object to where it should be. A positive duration asks
// for another pass after it. An error is logged and the key tried again later;
// ErrAgain is not logged.
type Func[K comparable] func(ctx context.Context, key K) (again time.Duration, err error)

// ErrAgain asks for a retry with back-off without a line in the log: for
// conflicts that the next event resolves.
var ErrAgain = errors.New("try again")

// Soonest is the shortest of the delays that are not 0: of several reasons for another pass
// the first to come.
func Soonest(delays ...time.Duration) time.Duration {
	var out time.Duration
	for _, d := range delays {
		if d > 0 && (out == 0 || d < out) {
			out = d
		}
	}
	return out
}

// Options bound a Queue. The zero value of a field means its default.
type Options struct {
	// Name is used in the log and labels the queue's metrics, in a program that has them.
	Name string
	// Workers is how many keys are worked on at once; 1 by default.
	Workers int
	// MinBackoff and MaxBackoff bound the delay after errors.
	MinBackoff, MaxBackoff time.Duration
	// Logger is slog.Default by default.
	Logger *slog.Logger
}

// Queue holds keys and works on them. Add may be called from anywhere, before,
// during and after Run, and never blocks.
type Queue[K comparable] struct {
	options Options
	work    Func[K]
	queue   workqueue.TypedRateLimitingInterface[K]
}

// New makes a queue that calls work. Keys added before Run wait for it.
func New[K comparable](o Options, work Func[K]) *Queue[K] {
	o.Workers = max(o.Workers, 1)
	if o.MinBackoff == 0 {
		o.MinBackoff = DefaultMinBackoff
	}
	if o.MaxBackoff == 0 {
		o.MaxBackoff = DefaultMaxBackoff
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[K](o.MinBackoff, o.MaxBackoff)
	return &Queue[K]{options: o, work: work, queue: workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[K]{Name: o.Name})}
}

// Add asks for a pass over the key. A key that is worked on right now gets
// another pass after it, never a second one at the same time.
func (q *Queue[K]) Add(key K) { q.queue.Add(key) }

// AddAfter asks for a pass not before the delay is over. Of several delays of
// one key the shortest counts.
func (q *Queue[K]) AddAfter(key K, delay time.Duration) { q.queue.AddAfter(key, delay) }

// Len is the number of keys that wait.
func (q *Queue[K]) Len() int { return q.queue.Len() }

// Run works until ctx ends and returns when every worker has. A Queue runs once.
func (q *Queue[K]) Run(ctx context.Context) error {
	var group errgroup.Group
	for range q.options.Workers {
		group.Go(func() error {
			for q.next(ctx) {
			}
			return nil
		})
	}
	<-ctx.Done()
	q.queue.ShutDown()
	return group.Wait()
}

func (q *Queue[K]) next(ctx context.Context) bool {
	key, shutdown := q.queue.Get()
	if shutdown {
		return false
	}
	defer q.queue.Done(key)
	if ctx.Err() != nil {
		return true // drain: what is left is found again by the next listing
	}
	again, err := q.call(ctx, key)
	switch {
	case err != nil && ctx.Err() != nil:
	case err != nil:
		if !errors.Is(err, ErrAgain) {
			q.options.Logger.Warn("reconciling", "queue", q.options.Name, "key", key,
				"attempt", q.queue.NumRequeues(key)+1, "err", err)
		}
		q.queue.AddRateLimited(key)
	default:
		q.queue.Forget(key)
		if again > 0 {
			q.queue.AddAfter(key, again)
		}
	}
	return true
}

// call turns a panic into an error: one object that nobody thought of must not
// take down the work on all others.
func (q *Queue[K]) call(ctx context.Context, key K) (again time.Duration, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	return q.work(ctx, key)
}
