// Package reconcile has the work queue of all rik components: a queue that holds a key at most
// once, a limited number of workers, and an increasing delay after errors.
//
// It is level-based: a key means that something about an object may have changed. It does not
// say what has changed, so the function must read the present state. The package has no informer
// and no client.
package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/workqueue"
)

// The default delays after errors.
const (
	DefaultMinBackoff = 50 * time.Millisecond
	DefaultMaxBackoff = 30 * time.Second
)

// Func reconciles the object of one key. With a positive again, the key gets another pass after
// that time. An error is logged and the key is retried later; ErrAgain is not logged.
type Func[K comparable] func(ctx context.Context, key K) (again time.Duration, err error)

// ErrAgain requests a retry with back-off without a log line, for conflicts that the next event
// resolves.
var ErrAgain = errors.New("try again")

// Soonest returns the shortest of the delays that are not 0: the time until the first of several
// reasons for another pass.
func Soonest(delays ...time.Duration) time.Duration {
	var out time.Duration
	for _, d := range delays {
		if d > 0 && (out == 0 || d < out) {
			out = d
		}
	}
	return out
}

// Options configure a Queue. The zero value of a field means its default.
type Options struct {
	// Name appears in the log and is the label of the queue's metrics, in a program that has
	// metrics.
	Name string
	// Workers is the number of keys processed at once; 1 by default.
	Workers int
	// MinBackoff and MaxBackoff limit the delay after errors.
	MinBackoff, MaxBackoff time.Duration
	// Logger is slog.Default by default.
	Logger *slog.Logger
}

// Queue holds keys and processes them. Add may be called from any goroutine, before, during and
// after Run, and never blocks.
type Queue[K comparable] struct {
	options Options
	work    Func[K]
	queue   workqueue.TypedRateLimitingInterface[K]
}

// New returns a queue that calls work. Keys that are added before Run wait for Run.
func New[K comparable](o Options, work Func[K]) *Queue[K] {
	o.Workers = max(o.Workers, 1)
	o.MinBackoff = cmp.Or(o.MinBackoff, DefaultMinBackoff)
	o.MaxBackoff = cmp.Or(o.MaxBackoff, DefaultMaxBackoff)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[K](o.MinBackoff, o.MaxBackoff)
	return &Queue[K]{options: o, work: work, queue: workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[K]{Name: o.Name})}
}

// Add requests a pass over the key. A key that is being processed gets another pass afterward,
// never two at the same time.
func (q *Queue[K]) Add(key K) { q.queue.Add(key) }

// AddAfter requests a pass after the delay. Of several delays of one key, the shortest counts.
func (q *Queue[K]) AddAfter(key K, delay time.Duration) { q.queue.AddAfter(key, delay) }

// Len returns the number of waiting keys.
func (q *Queue[K]) Len() int { return q.queue.Len() }

// Run processes keys until ctx ends, and returns when all workers have stopped. A Queue can run
// only once.
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
		return true // drain: the next listing finds the remaining keys again
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

// call converts a panic to an error, so that one unexpected object does not stop the work on all
// others.
func (q *Queue[K]) call(ctx context.Context, key K) (again time.Duration, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	return q.work(ctx, key)
}
