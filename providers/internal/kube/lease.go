package kube

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/sandgate/sandgate/providers"
)

const (
	// leaseTime is how long a lease is valid for the others without a renewal.
	leaseTime = 10 * time.Second
	// leaseUsable is how long a holder may act after it sent the last successful
	// renewal. Its work must end in the time that is left.
	leaseUsable = 8 * time.Second
	// renewTime bounds the attempts of a holder to renew.
	renewTime = 6 * time.Second
	// leaseRetry is the pause between two attempts. The others wait up to 2.2 times
	// as long, so that their attempts spread. A lost holder is thus replaced within
	// leaseTime and 4.4 times leaseRetry: 19 s.
	leaseRetry = 2 * time.Second
)

var (
	errNotHolding = fmt.Errorf("the lease could not be renewed in time: %w", providers.ErrUnavailable)
	errDone       = errors.New("the work under the lease has ended")
)

// Lease is a coordination.k8s.io/v1 Lease, which one process holds at a time.
type Lease struct {
	Leases    coordinationv1.LeasesGetter
	Namespace string
	Name      string
	Log       *slog.Logger
}

// NewLeases returns a client for leases. It has no rate limit: each lease costs at
// most a few requests per leaseRetry, and a renewal must not queue behind the
// requests of many callers or of other leases.
func NewLeases(config *rest.Config) (coordinationv1.LeasesGetter, error) {
	own := rest.CopyConfig(config)
	own.RateLimiter, own.QPS = nil, -1
	return coordinationv1.NewForConfig(own)
}

// Check returns an error if the cluster does not answer or this account may not
// use leases, so that the server fails at its start and not later.
func (l Lease) Check(ctx context.Context) error {
	_, err := l.Leases.Leases(l.Namespace).Get(ctx, l.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return Wrap(ctx, "lease "+l.Name, err)
}

// Lead calls do whenever this process holds the lease. It returns when ctx has
// ended and do has returned. The context of do ends with a cause as soon as
// another process may hold the lease; do must then return without delay. Lead
// releases the lease after do has returned.
func (l Lease) Lead(ctx context.Context, do func(context.Context)) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	identity := host + "-" + rand.Text()
	for ctx.Err() == nil {
		if err := l.term(ctx, identity, do); err != nil {
			l.Log.ErrorContext(ctx, "the lease cannot be acquired", "lease", l.Name, "error", err)
			return
		}
	}
}

// term waits for the lease, and holds it until ctx ends or it is lost.
func (l Lease) term(ctx context.Context, identity string, do func(context.Context)) error {
	t := &term{log: l.Log, name: l.Name}
	t.Interface = &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: l.Name}, Client: l.Leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}
	// The election outlives the work, because its end releases the lease.
	electing, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(errDone)
	won := make(chan struct{})
	lost := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: t, LeaseDuration: leaseTime, RenewDeadline: renewTime, RetryPeriod: leaseRetry, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(won) },
			OnStoppedLeading: func() { close(lost) },
		},
	})
	if err != nil {
		return err
	}
	go elector.Run(electing)
	select {
	case <-won:
		work, cancel := context.WithCancelCause(ctx)
		t.begin(cancel)
		do(work)
		t.end()
		cancel(errDone)
	case <-ctx.Done():
	}
	stop(errDone)
	<-lost
	return nil
}

// term is the lock of one election. It counts from the time at which a renewal was
// sent, not from its answer: answers may be slow, and the others count from the
// time at which they see the renewal.
type term struct {
	resourcelock.Interface
	log  *slog.Logger
	name string

	mu      sync.Mutex
	holder  string // as last read
	renewed time.Time
	trust   *time.Timer
	failing bool
}

// begin cancels the work when the last renewal is too old.
func (t *term) begin(cancel context.CancelCauseFunc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trust = time.AfterFunc(time.Until(t.renewed.Add(leaseUsable)), func() { cancel(errNotHolding) })
}

func (t *term) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trust.Stop()
	t.trust = nil
}

func (t *term) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := t.Interface.Get(ctx)
	t.report(ctx, err)
	if err == nil {
		t.mu.Lock()
		t.holder = record.HolderIdentity
		t.mu.Unlock()
	}
	return record, raw, err
}

func (t *term) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	sent := time.Now()
	return t.granted(ctx, sent, t.Interface.Create(ctx, record))
}

func (t *term) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	t.mu.Lock()
	holder := t.holder
	t.mu.Unlock()
	if record.HolderIdentity == "" && holder != t.Identity() {
		// A lost election must not release a lease that another may hold by now.
		return errNotHolding
	}
	sent := time.Now()
	return t.granted(ctx, sent, t.Interface.Update(ctx, record))
}

func (t *term) granted(ctx context.Context, sent time.Time, err error) error {
	t.report(ctx, err)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.renewed = sent
	// Cancelled work stays cancelled.
	if t.trust != nil && t.trust.Stop() {
		t.trust.Reset(time.Until(sent.Add(leaseUsable)))
	}
	return nil
}

// report logs once that the lease cannot be used, and once that it can again. A
// lease that another process holds is not a failure.
func (t *term) report(ctx context.Context, err error) {
	failed := err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) &&
		!errors.Is(context.Cause(ctx), errDone)
	t.mu.Lock()
	before := t.failing
	t.failing = failed
	t.mu.Unlock()
	switch {
	case failed && !before:
		t.log.WarnContext(ctx, "a lease cannot be read or written; expired sandboxes may be late", "lease", t.name, "error", err)
	case before && err == nil:
		t.log.InfoContext(ctx, "a lease can be used again", "lease", t.name)
	}
}
