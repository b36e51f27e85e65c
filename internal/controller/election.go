package controller

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"rik.dev/rik/internal/controllerterm"
)

const (
	// Namespace is the namespace of the controller's own objects.
	Namespace = controllerterm.Namespace
	// LeaseName is the Lease that the active controller holds.
	LeaseName = controllerterm.LeaseName

	// The same values as in Kubernetes' own controllers.
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second

	// The values of several servers with an embedded etcd: after the loss of a server, another
	// controller places instances within five seconds. A term that ends too early costs only a new
	// stream to the scheduler. An external datastore may be slower, and so has the values above.
	promptLease = 3 * time.Second
	promptRenew = 2 * time.Second
	promptRetry = 500 * time.Millisecond
)

// timing are the times of an election.
type timing struct{ lease, renew, retry time.Duration }

// lead runs a body while this controller is active. The term is higher than any earlier one,
// including earlier terms of this process.
type lead func(ctx context.Context, term int64) error

// ensureNamespace creates a namespace unless it exists.
func ensureNamespace(ctx context.Context, c client.Client, name string) error {
	err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating namespace %s: %w", name, err)
	}
	return nil
}

var errRaised = errors.New("ending this term, because an operator has confirmed a higher one")

// termOf returns the term of a Lease's holder.
func termOf(l *coordinationv1.Lease) int64 {
	return controllerterm.OfLease(l.Annotations, l.Spec.LeaseTransitions)
}

// raiseTerm makes every later term higher than the given one.
func raiseTerm(ctx context.Context, c client.Client, above int64) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		lease := &coordinationv1.Lease{}
		if err := c.Get(ctx, types.NamespacedName{Namespace: Namespace, Name: LeaseName}, lease); err != nil {
			return err
		}
		if termOf(lease) > above {
			return nil
		}
		base := above - termOf(lease)
		if before, err := strconv.ParseInt(lease.Annotations[controllerterm.AnnotationBase], 10, 64); err == nil && before > 0 {
			base += before
		}
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, controllerterm.AnnotationBase, strconv.FormatInt(base, 10))
		return c.Update(ctx, lease)
	})
	if err != nil {
		return fmt.Errorf("raising the term in lease %s/%s: %w", Namespace, LeaseName, err)
	}
	return nil
}

// takeLease makes this run the holder without waiting until the last holder's lease expires. It
// is for a cluster with one controller that was just restarted.
func takeLease(ctx context.Context, c client.Client, identity string, now func() time.Time) (int64, error) {
	var term int64
	err := retry.OnError(retry.DefaultBackoff, func(err error) bool {
		return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
	}, func() error {
		lease := &coordinationv1.Lease{}
		err := c.Get(ctx, types.NamespacedName{Namespace: Namespace, Name: LeaseName}, lease)
		if client.IgnoreNotFound(err) != nil {
			return err
		}
		fresh := apierrors.IsNotFound(err)
		var transitions int32
		if lease.Spec.LeaseTransitions != nil {
			transitions = *lease.Spec.LeaseTransitions
		}
		if !fresh {
			transitions++
		}
		seconds, at := int32(leaseDuration/time.Second), metav1.NewMicroTime(now())
		lease.Namespace, lease.Name = Namespace, LeaseName
		lease.Spec = coordinationv1.LeaseSpec{
			HolderIdentity: &identity, LeaseTransitions: &transitions, LeaseDurationSeconds: &seconds,
			AcquireTime: &at, RenewTime: &at,
		}
		term = termOf(lease)
		if fresh {
			return c.Create(ctx, lease)
		}
		return c.Update(ctx, lease)
	})
	if err != nil {
		return 0, fmt.Errorf("acquiring lease %s/%s: %w", Namespace, LeaseName, err)
	}
	return term, nil
}

// releaseLease gives up the Lease of a run that held it without an election, so that a candidate
// need not wait until it expires.
func releaseLease(ctx context.Context, c client.Client, identity string, now func() time.Time) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		lease := &coordinationv1.Lease{}
		if err := c.Get(ctx, types.NamespacedName{Namespace: Namespace, Name: LeaseName}, lease); err != nil {
			return err
		}
		if h := lease.Spec.HolderIdentity; h == nil || *h != identity {
			return nil
		}
		// The same as client-go writes.
		nobody, second, at := "", int32(1), metav1.NewMicroTime(now())
		lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &nobody, &second, &at
		return c.Update(ctx, lease)
	})
}

// candidacy is one attempt to become the active controller. mu guards the other fields: the
// elector starts the body in another goroutine, which may run after the elector has already
// given up.
type candidacy struct {
	mu      sync.Mutex
	started bool
	over    bool
	done    chan struct{}
	err     error
}

// begin returns false if the candidacy is over.
func (c *candidacy) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return false
	}
	c.started = true
	return true
}

// end ends the candidacy and reports whether a body was started.
func (c *candidacy) end() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	return c.started
}

// elect waits for the Lease, runs body while it is held, and returns when body has returned.
// The Lease is released only after that.
func elect(ctx context.Context, clients kubernetes.Interface, leads *leadership, identity string, times timing, standby func(holder string), body lead) error {
	identity += "_" + string(uuid.NewUUID())
	attempt := &candidacy{done: make(chan struct{})}
	elector, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()
	stop := context.AfterFunc(ctx, func() {
		if !attempt.end() {
			release()
		}
	})
	defer stop()
	le, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock{&resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: Namespace, Name: LeaseName},
			Client:     clients.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		}, leads, times.lease},
		LeaseDuration: times.lease, RenewDeadline: times.renew, RetryPeriod: times.retry,
		ReleaseOnCancel: true, Name: LeaseName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				if !attempt.begin() {
					return
				}
				defer close(attempt.done)
				defer release()
				attempt.err = underLease(leading, ctx, clients, identity, body)
			},
			OnStoppedLeading: func() {},
			OnNewLeader: func(holder string) {
				if holder != identity {
					standby(holder)
				}
			},
		},
	})
	if err != nil {
		return fmt.Errorf("preparing the election: %w", err)
	}
	le.Run(elector)
	if attempt.end() {
		<-attempt.done
	}
	return attempt.err
}

// underLease runs the body until the lease is lost or the process must stop.
func underLease(leading, process context.Context, clients kubernetes.Interface, identity string, body lead) error {
	ctx, cancel := context.WithCancel(leading)
	defer cancel()
	defer context.AfterFunc(process, cancel)()
	lease, err := clients.CoordinationV1().Leases(Namespace).Get(ctx, LeaseName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the term: %w", err)
	}
	if h := lease.Spec.HolderIdentity; h == nil || *h != identity {
		return fmt.Errorf("reading the term: another controller holds the lease")
	}
	return body(ctx, termOf(lease))
}
