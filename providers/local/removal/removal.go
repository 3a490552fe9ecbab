// Package removal removes sandboxes in steps that may fail or hang. It continues what
// hangs in the background, and tries again what fails.
package removal

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/sandgate/sandgate/providers/internal/directory"
	"github.com/sandgate/sandgate/providers/internal/lock"
)

const (
	// timeout limits one attempt to remove a sandbox.
	timeout = 30 * time.Second
	// retryTimeout limits how long the retry loop, or the start of the server, waits
	// for one sandbox. A longer removal continues in the background.
	retryTimeout = 5 * time.Second
	// The delay between attempts doubles from the first to the last.
	firstRetry = time.Second
	lastRetry  = 10 * time.Minute
)

// Config configures a Remover. All fields must be set.
type Config struct {
	Log *slog.Logger
	// Settle removes what is half made or half deleted of a sandbox. It calls Remove.
	Settle func(ctx context.Context, name string) (directory.Outcome, error)
	// Fault is called before each step. Its error fails the step.
	Fault func(ctx context.Context, step string) error
	// Go runs what continues in the background.
	Go func(func())
}

// Remover removes sandboxes. Make one with New. It is safe for concurrent use.
type Remover struct {
	config Config
	queue  *queue
}

// New returns a Remover. Run must be called for its retries.
func New(c Config) *Remover { return &Remover{config: c, queue: newQueue()} }

// Step is a part of a removal. Its name completes "cannot".
type Step struct {
	Name string
	Do   func() error
}

// Target is what one attempt removes.
type Target struct {
	// Lock is held by the caller. An attempt that continues in the background takes it
	// over.
	Lock *lock.Lock
	Dir  directory.Dir
	// Incarnation is empty if none is known.
	Incarnation string
	// Decided is true if it must be removed, whatever phase its record has.
	Decided bool
	// Steps returns the steps in order. They end when the context does, unless they
	// hang in the kernel, where no signal interrupts them.
	Steps func(ctx context.Context) []Step
}

// Remove makes one attempt. It returns when ctx ends, or after 31 s. The attempt then
// continues in the background. Its error is an *Error, and the Remover tries again
// later.
func (r *Remover) Remove(ctx context.Context, t Target) error {
	name := t.Lock.Name()
	if t.Decided {
		r.queue.decide(name, t.Incarnation)
	}
	work, stop := context.WithTimeoutCause(context.WithoutCancel(ctx), timeout, ErrSlow)
	at := &progress{}
	done := make(chan error, 1)
	go func() {
		defer stop()
		done <- r.runSteps(work, at, t.Steps(work))
	}()
	finished := func(err error) {
		n := r.queue.attempted(name, t.Incarnation, err)
		if err != nil {
			r.config.Log.LogAttrs(work, slog.LevelWarn, "cannot remove a sandbox; retrying later", slog.String("name", name),
				slog.Int("failures", n), slog.String("step", at.now()), slog.Any("error", errors.Unwrap(err)))
		}
	}
	wait, cancel := context.WithTimeoutCause(ctx, timeout+time.Second, ErrSlow)
	defer cancel()
	select {
	case err := <-done:
		finished(err)
		return err
	case <-wait.Done():
	}
	err := &Error{step: at.now(), cause: context.Cause(wait)}
	r.queue.detached(name, t.Incarnation, err)
	if errors.Is(err, ErrSlow) {
		r.config.Log.LogAttrs(work, slog.LevelWarn, "removing a sandbox takes long and continues in the background", slog.String("name", name), slog.String("step", err.step))
	}
	lent := t.Lock.Transfer()
	r.config.Go(func() {
		err := <-done
		lent.Release(!t.Dir.Exists())
		finished(err)
	})
	return err
}

func (r *Remover) runSteps(ctx context.Context, at *progress, steps []Step) error {
	for _, step := range steps {
		at.begin(step.Name)
		err := r.config.Fault(ctx, step.Name)
		if err == nil {
			err = step.Do()
		}
		if err != nil {
			return &Error{step: step.Name, cause: err}
		}
	}
	return nil
}

// progress holds the current step of an attempt.
type progress struct {
	mu   sync.Mutex
	step string
}

func (p *progress) begin(step string) {
	p.mu.Lock()
	p.step = step
	p.mu.Unlock()
}

func (p *progress) now() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.step
}

// Of reports whether a sandbox must be removed whatever phase its record has, and why
// it could not be removed, or "". The incarnation is the one that exists, or empty if
// its record cannot be read.
func (r *Remover) Of(name, incarnation string) (decided bool, reason string) {
	return r.queue.of(name, incarnation)
}

// Postpone leaves a removal to Run.
func (r *Remover) Postpone(name string) { r.queue.postpone(name) }

// Forget drops a sandbox that needs no more removal.
func (r *Remover) Forget(name string) { r.queue.forget(name) }

// Run retries failed removals until ctx ends.
func (r *Remover) Run(ctx context.Context) {
	for {
		names, next := r.queue.due(time.Now())
		for _, name := range names {
			if ctx.Err() != nil {
				return
			}
			r.Retry(ctx, name)
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
		case <-r.queue.changed:
		case <-ctx.Done():
			return
		}
	}
}

// Retry settles one sandbox and waits at most 5 s for it. If that fails, Run tries
// again.
func (r *Remover) Retry(ctx context.Context, name string) {
	bounded, cancel := context.WithTimeoutCause(ctx, retryTimeout, ErrSlow)
	defer cancel()
	state, err := r.config.Settle(bounded, name)
	var failed *Error
	switch {
	case errors.As(err, &failed):
		// Remove has recorded it.
	case err != nil:
		failed = &Error{step: "read its state", cause: err}
		n := r.queue.attempted(name, "", failed)
		r.config.Log.LogAttrs(ctx, slog.LevelWarn, "cannot read the state of a sandbox; retrying later", slog.String("name", name), slog.Int("failures", n), slog.Any("error", err))
	case state == directory.Busy:
		r.queue.later(name)
	default:
		r.queue.forget(name)
	}
}
