//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
)

// clearTime bounds the deletion of what is left after a load.
const clearTime = 5 * time.Minute

// load is the load on one server.
type load struct {
	options
	provider  string
	sandboxes int

	host    *host
	tally   *tally
	tenants []*tenant
	workers []*worker
}

// run starts a server, puts it under load, deletes everything and prints the figures.
func (l *load) run(ctx context.Context, w io.Writer) (err error) {
	l.options.tenants = min(l.options.tenants, l.sandboxes)
	l.options.workers = min(l.options.workers, l.options.tenants)
	l.tally = newTally()
	if l.host, err = newHost(ctx, l.provider, l.options.tenants); err != nil {
		return err
	}
	// Watches outlive the calls, for the last events.
	watching, unwatch := context.WithCancelCause(context.WithoutCancel(ctx))
	var watches sync.WaitGroup
	defer func() {
		err = errors.Join(err, l.clear(context.WithoutCancel(ctx)))
		unwatch(errors.New("the load is over"))
		watches.Wait()
		for _, n := range l.tenants {
			err = errors.Join(err, n.client.Close())
		}
		err = errors.Join(err, l.host.stop())
	}()
	if err := l.connect(watching, &watches); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-l.tally.tooMany:
			cancel(errors.New("too many errors"))
		case <-ctx.Done():
		}
	}()
	return l.measure(ctx, w)
}

// connect makes the tenants and the workers, which share them.
func (l *load) connect(ctx context.Context, watches *sync.WaitGroup) error {
	for i := range l.options.workers {
		l.workers = append(l.workers, &worker{load: l, chance: rand.New(rand.NewPCG(l.seed, uint64(i)))})
	}
	for i := range l.options.tenants {
		n, err := newTenant(ctx, l.host, i, l.tally, watches)
		if n != nil {
			l.tenants = append(l.tenants, n)
		}
		if err != nil {
			return fmt.Errorf("tenant %d: %w", i, err)
		}
		w := l.workers[i%len(l.workers)]
		w.tenants = append(w.tenants, n)
	}
	for i := range l.sandboxes {
		n := l.tenants[i%len(l.tenants)]
		n.boxes = append(n.boxes, &box{tenant: n})
	}
	return nil
}

// measure makes the calls of all phases.
func (l *load) measure(ctx context.Context, w io.Writer) error {
	var memory [4]int64
	note := func(i int) (err error) {
		memory[i], err = l.host.resident()
		return err
	}
	if err := note(0); err != nil {
		return err
	}
	filled := l.each(ctx, func(ctx context.Context, w *worker) error { return w.all(ctx, w.create) })
	if err := errors.Join(l.tally.err(), note(1)); err != nil {
		return err // What would follow has no sandboxes.
	}
	before, begin := l.tally.calls.Load(), time.Now()
	var soaked error
	if l.soak {
		soaked = l.soakFor(ctx, w)
	} else {
		l.mixed(ctx, nil)
	}
	took, calls := time.Since(begin), l.tally.calls.Load()-before
	err := note(2)
	l.host.uses.Loops() // so that Left knows them
	cleared := l.each(ctx, func(ctx context.Context, w *worker) error { return w.all(ctx, w.delete) })
	if ctx.Err() == nil && l.tally.failed() == 0 {
		for _, n := range l.tenants {
			if err := n.awaitEvents(ctx, l.host.killed()); err != nil {
				l.tally.fail(err)
			}
		}
	}
	err = errors.Join(err, note(3), context.Cause(ctx), soaked, l.tally.err())
	l.tally.print(w, fmt.Sprintf("%s: %d sandboxes of %d tenants", l.provider, l.sandboxes, len(l.tenants)))
	fmt.Fprintf(w, "%s: seed %d; %d sandboxes created in %.1f s, %d calls in %.1f s (%.0f per second, %d at a time), deleted in %.1f s\n",
		l.provider, l.seed, l.sandboxes, filled.Seconds(), calls, took.Seconds(), float64(calls)/took.Seconds(), len(l.workers), cleared.Seconds())
	fmt.Fprintf(w, "%s: %d errors; %d bytes compared, %d events; %d kills of the server, %d calls interrupted by them\n",
		l.provider, l.tally.failed(), l.tally.bytes.Load(), l.tally.events.Load(), l.host.killed(), l.tally.interrupted.Load())
	fmt.Fprintf(w, "%s: resident memory of the server: %d MiB without sandboxes, %d MiB with all, %d MiB after the calls, %d MiB without again\n",
		l.provider, memory[0]>>20, memory[1]>>20, memory[2]>>20, memory[3]>>20)
	return err
}

// each lets all workers do something, and returns how long it took.
func (l *load) each(ctx context.Context, do func(context.Context, *worker) error) time.Duration {
	begin := time.Now()
	var working sync.WaitGroup
	for _, w := range l.workers {
		working.Go(func() {
			if err := do(ctx, w); err != nil && ctx.Err() == nil {
				l.tally.fail(err)
			}
		})
	}
	working.Wait()
	return time.Since(begin)
}

// all does something with each sandbox.
func (w *worker) all(ctx context.Context, do func(context.Context, *box) error) error {
	for _, n := range w.tenants {
		for _, b := range n.boxes {
			if err := do(ctx, b); err != nil {
				return fmt.Errorf("sandbox %s: %w", b.id, err)
			}
		}
	}
	return nil
}

// mixed makes calls until the time is over, there were enough, or stop is closed.
func (l *load) mixed(ctx context.Context, stop <-chan struct{}) {
	end, most := time.Now().Add(l.duration), l.tally.calls.Load()+l.calls
	l.each(ctx, func(ctx context.Context, w *worker) error {
		for time.Now().Before(end) && l.tally.calls.Load() < most && ctx.Err() == nil {
			select {
			case <-stop:
				return nil
			default:
			}
			if err := w.next(ctx); err != nil && ctx.Err() == nil {
				l.tally.fail(err)
			}
		}
		return nil
	})
}

// clear deletes all sandboxes that a load that failed has left.
func (l *load) clear(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, clearTime, errors.New("deleting takes too long"))
	defer cancel()
	var errs []error
	for _, n := range l.tenants {
		for info, err := range n.client.List(ctx, sandgate.ListRequest{}) {
			if err == nil {
				_, err = n.client.Delete(ctx, info.GetSandboxId())
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("delete what is left: %w", err))
			}
		}
	}
	return errors.Join(errs...)
}
