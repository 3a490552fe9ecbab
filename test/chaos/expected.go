//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// state is a worker's last information about one of its sandboxes.
type state int

const (
	requested state = iota // its creation had no reply: it may exist
	active                 // it exists until it expires
	deleting               // its deletion had no reply: it may be gone
	deleted                // it does not exist
)

// entry is a sandbox in the state that its worker expects.
type entry struct {
	tenant  *tenant
	id      string
	box     *sandgate.Sandbox // nil while requested
	expires time.Time         // zero: after the test
	state   state
	sleeper bool // a detached command was started in it
}

const sleeperID = "sleeper"

// tenant is one principal, with the entries of all its workers.
type tenant struct {
	name   string
	client *sandgate.Client

	mu      sync.Mutex
	entries []*entry
}

func (t *tenant) add(id string) *entry {
	e := &entry{tenant: t, id: id}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.entries = append(t.entries, e)
	return e
}

// worker creates, uses and deletes its own sandboxes, one call after another.
type worker struct {
	*tenant
	name   string
	chance *rand.Rand
	tally  *tally
	mine   []*entry
	made   int
}

func (r *worker) work(ctx context.Context, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		var err error
		switch n := r.chance.IntN(10); {
		case len(r.mine) == 0, n < 3 && len(r.mine) < 4:
			err = r.create(ctx)
		case n < 7:
			err = r.use(ctx, r.mine[r.chance.IntN(len(r.mine))])
		default:
			err = r.remove(ctx, r.chance.IntN(len(r.mine)))
		}
		if err != nil && r.tally.fail(fmt.Errorf("%s: %w", r.name, err)) {
			return
		}
		r.tally.jobs.Add(1)
	}
}

// withTimeout sets a timeout, for some calls so short that they are cancelled halfway.
func (r *worker) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	maxJobTime := time.Minute
	if r.chance.IntN(8) == 0 {
		maxJobTime = time.Duration(5+r.chance.IntN(200)) * time.Millisecond
	}
	return context.WithTimeout(ctx, maxJobTime)
}

// unknownOutcome reports whether an error leaves the outcome of the call open.
func unknownOutcome(err error) bool {
	for _, known := range []error{
		sandgate.ErrUnavailable, sandgate.ErrConnectionLost, sandgate.ErrDeadlineExceeded, sandgate.ErrCallCancelled,
		context.DeadlineExceeded, context.Canceled,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

func (r *worker) create(ctx context.Context) error {
	r.made++
	e := r.add(fmt.Sprintf("%s-%d", r.name, r.made))
	req := sandgate.CreateRequest{ID: e.id, Labels: map[string]string{"of": r.name}}
	if r.chance.IntN(3) == 0 {
		req.Spec = &sandgate.Spec{Env: map[string]string{"COLD": "1"}} // a pool has no such sandbox
	}
	if r.chance.IntN(4) == 0 {
		req.TTL = time.Duration(3+r.chance.IntN(5)) * time.Second
	}
	ctx, cancel := r.withTimeout(ctx)
	defer cancel()
	box, _, err := r.client.Create(ctx, req)
	if unknownOutcome(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", e.id, err)
	}
	if box.Created().GetFromPool() {
		r.tally.claims.Add(1)
	}
	e.box, e.state = box, active
	if req.TTL > 0 {
		e.expires = box.Created().GetExpireTime().AsTime()
	}
	r.mine = append(r.mine, e)
	p, err := box.Start(ctx, sandgate.ExecuteRequest{
		Shell: fmt.Sprintf("echo %s >/workspace/marker; sleep 3600 & exec sleep 3600", e.id), ExecID: sleeperID, Detach: true, Timeout: sandgate.Unlimited,
	})
	if err != nil {
		return e.checkError("start a command", err)
	}
	p.Close()
	e.sleeper = true
	return nil
}

// checkError returns an error from an expected sandbox, unless the outcome is unknown
// or the sandbox has expired.
func (e *entry) checkError(what string, err error) error {
	missing := errors.Is(err, sandgate.ErrSandboxNotFound) || errors.Is(err, sandgate.ErrSandboxNotActive) || errors.Is(err, sandgate.ErrExecNotFound)
	switch {
	case err == nil, unknownOutcome(err):
		return nil
	case !e.expires.IsZero() && missing && time.Now().After(e.expires):
		e.state = deleted
		return nil
	default:
		return fmt.Errorf("%s: %s (it expires: %v): %w", e.id, what, e.expires, err)
	}
}

func (r *worker) use(ctx context.Context, e *entry) error {
	if e.state != active {
		return nil
	}
	ctx, cancel := r.withTimeout(ctx)
	defer cancel()
	r.tally.commands.Add(1)
	return e.checkError("use", e.checkMarker(ctx))
}

// checkMarker checks that this is the sandbox in which the sleeper was started.
func (e *entry) checkMarker(ctx context.Context) error {
	if !e.sleeper {
		return nil
	}
	// The sleeper may not have run its first line yet.
	result, err := e.box.Execute(ctx, sandgate.ExecuteRequest{
		Shell: "for i in $(seq 400); do test -s /workspace/marker && break; sleep 0.1; done; cat /workspace/marker",
	})
	if err != nil {
		return err
	}
	if got := strings.TrimSpace(string(result.Stdout)); got != e.id {
		if !e.expires.IsZero() && time.Now().After(e.expires) {
			return sandgate.ErrSandboxNotFound // it ended with its sandbox
		}
		return fmt.Errorf("the marker is %q, want %q; %v", got, e.id, result.Exit)
	}
	return nil
}

func (r *worker) remove(ctx context.Context, i int) error {
	e := r.mine[i]
	r.mine = append(r.mine[:i], r.mine[i+1:]...)
	if e.state != active {
		return nil
	}
	ctx, cancel := r.withTimeout(ctx)
	defer cancel()
	e.state = deleting
	_, err := r.client.Delete(ctx, e.id)
	if err == nil {
		e.state = deleted
	}
	return e.checkError("delete", err)
}

// check compares an entry with the sandbox after the storm. It returns errEarly for a
// difference that may still go away.
func (e *entry) check(ctx context.Context) error {
	// By its id, in any incarnation.
	info, err := e.tenant.client.Sandbox(e.id).Info(ctx)
	missing := errors.Is(err, sandgate.ErrSandboxNotFound)
	switch {
	case err != nil && !missing:
		return fmt.Errorf("%s: %w", e.id, err)
	case e.state == deleted && !missing:
		return fmt.Errorf("%s was deleted and is %v: %w", e.id, info.GetState(), errEarly)
	case missing && e.state == active && (e.expires.IsZero() || time.Now().Before(e.expires)):
		return fmt.Errorf("%s is not there, and should be (it expires: %v)", e.id, e.expires)
	case missing:
		return nil
	case info.GetState() != sandboxv1.SandboxState_SANDBOX_STATE_ACTIVE:
		return fmt.Errorf("%s is %v: %w", e.id, info.GetState(), errEarly)
	case !e.expires.IsZero():
		return fmt.Errorf("%s should have expired at %v: %w", e.id, e.expires, errEarly)
	case e.state == active && info.GetIncarnation() != e.box.Incarnation:
		return fmt.Errorf("%s is incarnation %s, it was %s", e.id, info.GetIncarnation(), e.box.Incarnation)
	case e.state != active:
		// Its state is unknown, but it must be usable.
		_, err := e.tenant.client.Sandbox(e.id).Execute(ctx, sandgate.ExecuteRequest{Argv: []string{"true"}})
		return err
	}
	return e.checkUsable(ctx)
}

// checkUsable checks that the sandbox survived the storm unharmed.
func (e *entry) checkUsable(ctx context.Context) error {
	if err := e.checkMarker(ctx); err != nil {
		return fmt.Errorf("%s: %w", e.id, err)
	}
	running, err := e.box.Processes(ctx, false)
	if err != nil {
		return fmt.Errorf("%s: %w", e.id, err)
	}
	for _, p := range running {
		if p.GetExecId() == sleeperID {
			return nil
		}
	}
	if e.sleeper {
		return fmt.Errorf("%s: the command that was left running is gone; there are %v", e.id, running)
	}
	return nil
}

var errEarly = errors.New("not yet as it should be")
