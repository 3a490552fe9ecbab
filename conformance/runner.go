package conformance

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

// Outcome is the outcome of a case.
type Outcome string

// The outcomes, as they are printed.
const (
	OK     Outcome = "ok"
	Failed Outcome = "FAIL"
	// Skipped: the case does not apply here, for Result.Reasons.
	Skipped Outcome = "skip"
	// Stopped: the run ended while the case ran, so that nothing is known of it.
	Stopped Outcome = "stop"
)

// Result is the result of one case.
type Result struct {
	Case    Case
	Outcome Outcome
	Took    time.Duration
	// Reasons of a failure, or the one of a skip.
	Reasons []string
	// Log holds the notes of the case.
	Log []string
}

// ErrServerGone ends a run: the server answered at first, and does not any more.
var ErrServerGone = errors.New("the server cannot be reached any more")

// How long the server may be silent: it may be restarted, and cases break
// connections, but those to this watch are its own.
const (
	watchEvery  = time.Second
	watchSilent = 15 * time.Second
)

// RunAll runs cases one after the other without Go's testing, and reports each.
// It returns early, with the reason, when ctx ends or the server is gone.
func (s *Suite) RunAll(ctx context.Context, cases []Case, report func(Result)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { s.watch(ctx, cancel) })
	defer watching.Wait()
	defer cancel(nil)
	for _, c := range cases {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		report(s.runOne(ctx, c))
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// watch ends the run if the server has been silent for too long: otherwise each case
// would retry until its timeout.
func (s *Suite) watch(ctx context.Context, cancel context.CancelCauseFunc) {
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(watchEvery):
		}
		ask, done := context.WithTimeout(ctx, watchSilent)
		_, err := s.once.ServerInfo(ask)
		done()
		switch {
		case err == nil:
			last = time.Now()
		case ctx.Err() == nil && time.Since(last) >= watchSilent:
			cancel(fmt.Errorf("%w: %w", ErrServerGone, err))
			return
		}
	}
}

// runOne runs a case in a goroutine of its own, which Fatalf and Skipf end.
func (s *Suite) runOne(ctx context.Context, c Case) Result {
	began := time.Now()
	var stopped error // why the run ended before the case did
	inner, cancel := context.WithCancelCause(ctx)
	r := &recorder{ctx: inner}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			stopped = context.Cause(ctx)
			r.cleanUp(cancel)
		}()
		defer r.recovered()
		s.Run(inner, r, c)
	}()
	<-done
	result := Result{Case: c, Outcome: OK, Took: time.Since(began), Reasons: r.reasons, Log: r.log}
	switch {
	case stopped != nil:
		result.Outcome, result.Reasons = Stopped, []string{stopped.Error()}
	case len(r.reasons) > 0:
		result.Outcome = Failed
	case r.skipped != "":
		result.Outcome, result.Reasons = Skipped, []string{r.skipped}
	}
	return result
}

// recorder is the T of RunAll.
type recorder struct {
	ctx context.Context //nolint:containedctx // As in testing.T: the case asks for it.

	mu       sync.Mutex
	reasons  []string
	log      []string
	skipped  string
	cleanups []func()
}

var _ T = (*recorder)(nil)

func (r *recorder) Helper() {}

func (r *recorder) Context() context.Context { return r.ctx }

func (r *recorder) Logf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, fmt.Sprintf(format, args...))
}

// mostReasons bounds the failures of one case: with a broken server there are
// thousands.
const mostReasons = 20

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch len(r.reasons) {
	case mostReasons:
		r.reasons = append(r.reasons, "… and more")
	case mostReasons + 1:
	default:
		r.reasons = append(r.reasons, strings.TrimSpace(fmt.Sprintf(format, args...)))
	}
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Skipf(format string, args ...any) {
	r.mu.Lock()
	r.skipped = fmt.Sprintf(format, args...)
	r.mu.Unlock()
	runtime.Goexit()
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.reasons) > 0
}

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

// recovered turns a panic of a case into its failure.
func (r *recorder) recovered() {
	if p := recover(); p != nil {
		r.Errorf("the case panicked: %v\n%s", p, debug.Stack())
	}
}

// cleanUp calls the functions of Cleanup, the last one first, and all of them even if
// one ends its goroutine or panics.
func (r *recorder) cleanUp(cancel context.CancelCauseFunc) {
	cancel(errors.New("the case has ended"))
	for {
		r.mu.Lock()
		n := len(r.cleanups)
		if n == 0 {
			r.mu.Unlock()
			return
		}
		f := r.cleanups[n-1]
		r.cleanups = r.cleanups[:n-1]
		r.mu.Unlock()
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer r.recovered()
			f()
		}()
		<-done
	}
}
