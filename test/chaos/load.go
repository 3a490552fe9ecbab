//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/test/chaos/stream"
)

// maxJobTime bounds one job: it exceeds every delay that the design allows.
const maxJobTime = 3 * time.Minute

// maxFailures ends a run.
const maxFailures = 10

// tally holds the counters of a run.
type tally struct {
	hop1, hop2, restarts, jobs, commands, bytes, claims atomic.Int64
	cancels, late                                       atomic.Int64 // no restart between: cancels, and ends that came late
	kinds                                               [cutKindCount]atomic.Int64

	mu       sync.Mutex
	failures []error
}

func (t *tally) cuts() int64 { return t.hop1.Load() + t.hop2.Load() }

// fail records failures and reports whether there are too many.
func (t *tally) fail(errs ...error) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures = append(t.failures, errs...)
	for _, err := range errs {
		fmt.Println("FAIL:", err)
	}
	return len(t.failures) >= maxFailures
}

// load is the state that the workers share.
type load struct {
	h      *host
	seed   uint64
	number atomic.Uint64
	tally  *tally

	mu  sync.Mutex
	ran map[string][]string // the ids that must have run, by sandbox
	cut map[string]bool     // those that may have been killed before they recorded it
}

// work does one job after the other until stop is closed.
func (l *load) work(ctx context.Context, client *sandgate.Client, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		default:
		}
		j := newJob(l.seed, l.number.Add(1))
		err := l.do(ctx, client, j)
		l.tally.jobs.Add(1)
		if err != nil && ctx.Err() == nil && l.tally.fail(fmt.Errorf("%v: %w", j, err)) {
			return
		}
	}
}

func (l *load) do(ctx context.Context, client *sandgate.Client, j *job) error {
	ctx, cancel := context.WithTimeout(ctx, maxJobTime)
	defer cancel()
	there := l.h.sandboxes[j.number%uint64(len(l.h.sandboxes))]
	s := client.Sandbox(there.ID())
	s.Incarnation = there.Incarnation
	if j.kind == jobCopy {
		return j.copy(ctx, s, l.tally)
	}
	l.mu.Lock()
	l.ran[s.ID()] = append(l.ran[s.ID()], j.id())
	l.cut[j.id()] = j.kind == jobTimeout || j.kind == jobKill || j.kind == jobCancel
	l.mu.Unlock()
	l.tally.commands.Add(1)
	switch j.kind {
	case jobEcho:
		return j.echo(ctx, s, l.tally)
	case jobCancel:
		return j.cancel(ctx, s, l.tally)
	case jobDetach:
		return j.detach(ctx, s, l.tally)
	default:
		return j.run(ctx, s, l.tally)
	}
}

// run starts the command and follows it.
func (j *job) run(ctx context.Context, s *sandgate.Sandbox, t *tally) error {
	request := sandgate.ExecuteRequest{Argv: j.argv(j.stdout), ExecID: j.id()}
	if j.kind == jobTimeout {
		request.Timeout = j.timeout
	}
	p, err := s.Start(ctx, request)
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	defer p.Close()
	killed := make(chan error, 1)
	if j.kind == jobKill {
		go func() { killed <- j.kill(ctx, s) }()
	} else {
		killed <- nil
	}
	log, err := j.follow(p, t)
	if err != nil {
		return err
	}
	if err := <-killed; err != nil {
		return fmt.Errorf("kill: %w", err)
	}
	if j.kind != jobReplay {
		return nil
	}
	from := j.chance.Int64N(p.Exit().GetPosition() + 1)
	again, err := s.Attach(ctx, j.id(), from, 0)
	if err != nil {
		return fmt.Errorf("attach at %d: %w", from, err)
	}
	defer again.Close()
	if err := checkReplay(again, from, log, t); err != nil {
		return fmt.Errorf("replay from %d: %w", from, err)
	}
	return nil
}

// kill kills the command after a while. It repeats a call without a reply: the client
// does not retry signals.
func (j *job) kill(ctx context.Context, s *sandgate.Sandbox) error {
	select {
	case <-time.After(j.timeout):
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		_, err := s.Signal(ctx, j.id(), "SIGKILL", sandgate.Tree)
		if !errors.Is(err, sandgate.ErrUnavailable) {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// promptly bounds the end of a command after its caller's kill: less than the grace
// period after a disconnect.
const promptly = 25 * time.Second

// cancel cancels while the command runs and checks that the command ends. The client
// tries for a few seconds to kill it; if the server is away for all of them, the
// command ends after its grace period. Without a restart most must not.
func (j *job) cancel(ctx context.Context, s *sandgate.Sandbox, t *tally) error {
	restarts := t.restarts.Load()
	giveUp, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p, err := s.Start(giveUp, sandgate.ExecuteRequest{Argv: j.argv(j.stdout), ExecID: j.id()})
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	defer p.Close()
	timer := time.AfterFunc(j.timeout, func() { cancel(errors.New("the caller has seen enough")) })
	defer timer.Stop()
	if _, err := j.follow(p, t); !errors.Is(err, sandgate.ErrCallCancelled) {
		return fmt.Errorf("cancelled, but: %w", err)
	}
	p.Close()
	start := time.Now()
	if err := j.awaitEnd(ctx, s); err != nil {
		return err
	}
	if t.restarts.Load() == restarts {
		t.cancels.Add(1)
		if time.Since(start) > promptly {
			t.late.Add(1)
		}
	}
	again, err := s.Attach(ctx, j.id(), 0, 0)
	if err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	defer again.Close()
	_, err = j.follow(again, t)
	return err
}

// awaitEnd waits until the command has ended. It does not attach: that would end the
// grace period.
func (j *job) awaitEnd(ctx context.Context, s *sandgate.Sandbox) error {
	for {
		running, err := s.Processes(ctx, false)
		if err != nil && !errors.Is(err, sandgate.ErrUnavailable) {
			return fmt.Errorf("cancelled, but not over: %w", err)
		}
		if err == nil && !slices.ContainsFunc(running, func(p *sandboxv1.Process) bool { return p.GetExecId() == j.id() }) {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("cancelled, but not over: %w", context.Cause(ctx))
		}
	}
}

// graceful returns an error if too many kills did not reach their command.
func (t *tally) graceful() error {
	if cancels, late := t.cancels.Load(), t.late.Load(); late > 2 && 2*late > cancels {
		return fmt.Errorf("%d of %d commands lived on for more than %s after their callers cancelled", late, cancels, promptly)
	}
	return nil
}

// detach starts the command, disconnects, and attaches again.
func (j *job) detach(ctx context.Context, s *sandgate.Sandbox, t *tally) error {
	p, err := s.Start(ctx, sandgate.ExecuteRequest{Argv: j.argv(j.stdout), ExecID: j.id(), Detach: true})
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	p.Close()
	if p, err = s.Attach(ctx, j.id(), 0, 0); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	defer p.Close()
	_, err = j.follow(p, t)
	return err
}

// echo sends bytes that the command must send back.
func (j *job) echo(ctx context.Context, s *sandgate.Sandbox, t *tally) error {
	p, err := s.Start(ctx, sandgate.ExecuteRequest{Argv: j.argv(0, "-echo"), ExecID: j.id(), StdinOpen: true})
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	defer p.Close()
	sent := make(chan error, 1)
	go func() {
		sent <- func() error {
			bytes := stream.New(j.seed, 1)
			for left := j.stdout; left > 0; {
				data := make([]byte, min(left, 1+j.chance.Int64N(1<<j.chance.IntN(18))))
				_, _ = io.ReadFull(bytes, data)
				if err := p.WriteStdin(ctx, data); err != nil {
					return err
				}
				left -= int64(len(data))
			}
			return p.CloseStdin(ctx)
		}()
	}()
	if _, err := j.follow(p, t); err != nil {
		return err
	}
	if err := <-sent; err != nil {
		return fmt.Errorf("write standard input: %w", err)
	}
	return nil
}

// copy uploads a file, downloads it again and removes it.
func (j *job) copy(ctx context.Context, s *sandgate.Sandbox, t *tally) error {
	data := make([]byte, j.stdout)
	_, _ = io.ReadFull(stream.New(j.seed, 1), data)
	path := "/workspace/files/" + j.id()
	result, err := s.UploadFile(ctx, sandgate.File{Path: path, Content: bytes.NewReader(data)})
	if err := errors.Join(err, result.Err); err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	if sum := sha256.Sum256(data); result.Size != j.stdout || !bytes.Equal(result.SHA256, sum[:]) {
		return fmt.Errorf("upload: %d bytes arrived as %d, or changed", j.stdout, result.Size)
	}
	compare := &comparer{stream: stream.New(j.seed, 1)}
	if _, err := s.DownloadFile(ctx, path, compare, nil); err != nil {
		return fmt.Errorf("download: %w", err)
	}
	if compare.stream.At() != j.stdout {
		return fmt.Errorf("download: %d bytes, want %d", compare.stream.At(), j.stdout)
	}
	t.bytes.Add(2 * j.stdout)
	for {
		err := s.Remove(ctx, path, false)
		switch {
		case err == nil, errors.Is(err, sandgate.ErrFileNotFound):
			return nil // The second removal, if the first reply was lost.
		case !errors.Is(err, sandgate.ErrUnavailable):
			return fmt.Errorf("remove: %w", err)
		}
	}
}

// comparer is a writer that expects the bytes of a stream.
type comparer struct{ stream *stream.Stream }

// Write fails on the first byte that differs.
func (c *comparer) Write(p []byte) (int, error) {
	if err := c.stream.Compare(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// once checks in every sandbox that each command ran exactly once and has ended.
func (l *load) once(ctx context.Context) (errs []error) {
	for _, s := range l.h.sandboxes {
		var ran bytes.Buffer
		if _, err := s.DownloadFile(ctx, ranPath, &ran, nil); err != nil && len(l.ran[s.ID()]) > 0 {
			errs = append(errs, fmt.Errorf("what ran in %s: %w", s.ID(), err))
			continue
		}
		differ := differ(l.ran[s.ID()], strings.Fields(ran.String()))
		maps.DeleteFunc(differ, func(id string, n int) bool { return n == -1 && l.cut[id] })
		if len(differ) > 0 {
			errs = append(errs, fmt.Errorf("in %s ran what should not, or twice, or not at all: %v", s.ID(), differ))
		}
		running, err := s.Processes(ctx, false)
		if err != nil {
			errs = append(errs, err)
		}
		for _, p := range running {
			errs = append(errs, fmt.Errorf("in %s still runs: %v", s.ID(), p))
		}
	}
	return errs
}

// differ counts the elements that one list has more often than the other.
func differ(want, got []string) map[string]int {
	count := make(map[string]int)
	for _, id := range got {
		count[id]++
	}
	for _, id := range want {
		count[id]--
	}
	for id, n := range count {
		if n == 0 {
			delete(count, id)
		}
	}
	return count
}
