package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/directory"
	"github.com/sandgate/sandgate/providers/internal/lock"
)

const (
	// removeTimeout limits one attempt to remove a sandbox.
	removeTimeout = 30 * time.Second
	// recoverTimeout limits how long the start of the server waits for one
	// sandbox, and recoverBudget for all of them. Longer removals continue in
	// the background.
	recoverTimeout = 5 * time.Second
	recoverBudget  = 15 * time.Second
	// The delay between attempts doubles from the first to the last.
	firstRemovalRetry = time.Second
	lastRemovalRetry  = 10 * time.Minute
)

var errSlowRemoval = errors.New("timed out")

// removalError is a failed removal. Its text is public; the cause, which may
// name paths of the host, is for the log.
type removalError struct {
	step  string
	cause error
}

func (e *removalError) Error() string {
	var errno syscall.Errno
	switch {
	case errors.Is(e.cause, errSlowRemoval):
		return "cannot " + e.step + ": timed out"
	case errors.As(e.cause, &errno):
		return "cannot " + e.step + ": " + errno.Error()
	default:
		return "cannot " + e.step
	}
}

func (e *removalError) Unwrap() error { return e.cause }

// Destroy removes a sandbox in any state.
//
// Steps can hang in the kernel, where no signal interrupts them. So Destroy
// returns when the context ends. The attempt then continues in the background
// and takes the lock over from the caller.
func (d driver) Destroy(ctx context.Context, held *lock.Lock, dir directory.Dir, container string, rec *record) error {
	if err := d.p.destroy(ctx, held, dir, container, rec); err != nil {
		return fmt.Errorf("sandbox %s is not removed yet: %w: %w", held.Name(), err, providers.ErrUnavailable)
	}
	return nil
}

func (p *Provider) destroy(ctx context.Context, held *lock.Lock, dir directory.Dir, container string, rec *record) error {
	incarnation := ""
	if rec != nil {
		incarnation = rec.Incarnation
	}
	if rec != nil && rec.Phase == directory.Deleting {
		p.removals.decide(held.Name(), incarnation)
	}
	work, stop := context.WithTimeoutCause(context.WithoutCancel(ctx), removeTimeout, errSlowRemoval)
	attempt := &attempt{}
	done := make(chan error, 1)
	go func() {
		defer stop()
		done <- p.removeAll(work, attempt, bundle(dir), container, rec)
	}()
	finished := func(err error) {
		n := p.removals.attempted(held.Name(), incarnation, err)
		if err != nil {
			p.log.LogAttrs(work, slog.LevelWarn, "cannot remove a sandbox; retrying later", slog.String("name", held.Name()),
				slog.Int("failures", n), slog.String("step", attempt.now()), slog.Any("error", errors.Unwrap(err)))
		}
	}
	wait, cancel := context.WithTimeoutCause(ctx, removeTimeout+time.Second, errSlowRemoval)
	defer cancel()
	select {
	case err := <-done:
		finished(err)
		return err
	case <-wait.Done():
	}
	err := &removalError{step: attempt.now(), cause: context.Cause(wait)}
	p.removals.detached(held.Name(), incarnation, err)
	if errors.Is(err, errSlowRemoval) {
		p.log.LogAttrs(work, slog.LevelWarn, "removing a sandbox takes long and continues in the background", slog.String("name", held.Name()), slog.String("step", err.step))
	}
	lent := held.Transfer()
	p.background.Go(func() {
		err := <-done
		lent.Release(!dir.Exists())
		finished(err)
	})
	return err
}

// attempt holds the current step of a removal.
type attempt struct {
	mu   sync.Mutex
	step string
}

func (a *attempt) begin(step string) {
	a.mu.Lock()
	a.step = step
	a.mu.Unlock()
}

func (a *attempt) now() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.step
}

// retryRemovals retries failed removals until the provider closes.
func (p *Provider) retryRemovals(ctx context.Context) {
	for {
		names, next := p.removals.due(time.Now())
		for _, name := range names {
			if ctx.Err() != nil {
				return
			}
			p.retryRemoval(ctx, name)
		}
		if len(names) > 0 {
			continue
		}
		var timer <-chan time.Time
		if !next.IsZero() {
			timer = time.After(time.Until(next))
		}
		select {
		case <-timer:
		case <-p.removals.changed:
		case <-ctx.Done():
			return
		}
	}
}

// retryRemoval makes one attempt.
func (p *Provider) retryRemoval(ctx context.Context, name string) {
	bounded, cancel := context.WithTimeoutCause(ctx, recoverTimeout, errSlowRemoval)
	defer cancel()
	state, err := p.settle(bounded, name)
	var failed *removalError
	switch {
	case errors.As(err, &failed):
		// destroy has recorded it.
	case err != nil:
		failed = &removalError{step: "read its state", cause: err}
		n := p.removals.attempted(name, "", failed)
		p.log.LogAttrs(ctx, slog.LevelWarn, "cannot read the state of a sandbox; retrying later", slog.String("name", name), slog.Int("failures", n), slog.Any("error", err))
	case state == directory.Busy:
		p.removals.later(name)
	default:
		p.removals.forget(name)
	}
}
