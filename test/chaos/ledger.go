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

// fate is what a worker was told of one of its sandboxes.
type fate int

const (
	asked   fate = iota // its creation was not answered: it may be there
	lives               // it is there until it expires
	leaving             // its deletion was not answered: it may be gone
	gone                // it is not there
)

// entry is one sandbox in a worker's ledger.
type entry struct {
	tenant  *tenant
	id      string
	box     *sandgate.Sandbox // nil while asked
	expires time.Time         // zero: not for now
	fate    fate
	sleeper bool // a detached command was started in it
}

const sleeperID = "sleeper"

// tenant is one principal, with a ledger that its workers share.
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

// raider makes, uses and deletes sandboxes of its own, one call after another.
type raider struct {
	*tenant
	name   string
	chance *rand.Rand
	tally  *tally
	mine   []*entry
	made   int
}

func (r *raider) work(ctx context.Context, stop <-chan struct{}) {
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

// hurried gives some calls so little time that they are given up half way.
func (r *raider) hurried(ctx context.Context) (context.Context, context.CancelFunc) {
	patience := time.Minute
	if r.chance.IntN(8) == 0 {
		patience = time.Duration(5+r.chance.IntN(200)) * time.Millisecond
	}
	return context.WithTimeout(ctx, patience)
}

// unanswered reports whether an error leaves open what has happened.
func unanswered(err error) bool {
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

func (r *raider) create(ctx context.Context) error {
	r.made++
	e := r.add(fmt.Sprintf("%s-%d", r.name, r.made))
	req := sandgate.CreateRequest{ID: e.id, Labels: map[string]string{"of": r.name}}
	if r.chance.IntN(3) == 0 {
		req.Spec = &sandgate.Spec{Env: map[string]string{"COLD": "1"}} // no pool has that
	}
	if r.chance.IntN(4) == 0 {
		req.TTL = time.Duration(3+r.chance.IntN(5)) * time.Second
	}
	ctx, cancel := r.hurried(ctx)
	defer cancel()
	box, _, err := r.client.Create(ctx, req)
	if unanswered(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", e.id, err)
	}
	if box.Created().GetFromPool() {
		r.tally.claims.Add(1)
	}
	e.box, e.fate = box, lives
	if req.TTL > 0 {
		e.expires = box.Created().GetExpireTime().AsTime()
	}
	r.mine = append(r.mine, e)
	p, err := box.Start(ctx, sandgate.ExecuteRequest{
		Shell: fmt.Sprintf("echo %s >/workspace/marker; sleep 3600 & exec sleep 3600", e.id), ExecID: sleeperID, Detach: true, Timeout: sandgate.Unlimited,
	})
	if err != nil {
		return e.lost("start a command", err)
	}
	p.Close()
	e.sleeper = true
	return nil
}

// lost says what an error on a sandbox means that should be there.
func (e *entry) lost(what string, err error) error {
	missing := errors.Is(err, sandgate.ErrSandboxNotFound) || errors.Is(err, sandgate.ErrSandboxNotActive) || errors.Is(err, sandgate.ErrExecNotFound)
	switch {
	case err == nil, unanswered(err):
		return nil
	case !e.expires.IsZero() && missing && time.Now().After(e.expires):
		e.fate = gone
		return nil
	default:
		return fmt.Errorf("%s: %s (it expires: %v): %w", e.id, what, e.expires, err)
	}
}

func (r *raider) use(ctx context.Context, e *entry) error {
	if e.fate != lives {
		return nil
	}
	ctx, cancel := r.hurried(ctx)
	defer cancel()
	r.tally.commands.Add(1)
	return e.lost("use", e.marked(ctx))
}

// marked checks that the sandbox is the one in which the sleeper was started.
func (e *entry) marked(ctx context.Context) error {
	if !e.sleeper {
		return nil
	}
	// The sleeper may not have come to its first line yet.
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
		return fmt.Errorf("the marker says %q, want %q; %v", got, e.id, result.Exit)
	}
	return nil
}

func (r *raider) remove(ctx context.Context, i int) error {
	e := r.mine[i]
	r.mine = append(r.mine[:i], r.mine[i+1:]...)
	if e.fate != lives {
		return nil
	}
	ctx, cancel := r.hurried(ctx)
	defer cancel()
	e.fate = leaving
	_, err := r.client.Delete(ctx, e.id)
	if err == nil {
		e.fate = gone
	}
	return e.lost("delete", err)
}

// check compares an entry with what is there after the storm. An answer that
// time may still change is errEarly.
func (e *entry) check(ctx context.Context) error {
	// The ledger knows ids; whatever incarnation is there is looked at.
	info, err := e.tenant.client.Sandbox(e.id).Info(ctx)
	missing := errors.Is(err, sandgate.ErrSandboxNotFound)
	switch {
	case err != nil && !missing:
		return fmt.Errorf("%s: %w", e.id, err)
	case e.fate == gone && !missing:
		return fmt.Errorf("%s was deleted and is %v: %w", e.id, info.GetState(), errEarly)
	case missing && e.fate == lives && (e.expires.IsZero() || time.Now().Before(e.expires)):
		return fmt.Errorf("%s is not there, and should be (it expires: %v)", e.id, e.expires)
	case missing:
		return nil
	case info.GetState() != sandboxv1.SandboxState_SANDBOX_STATE_ACTIVE:
		return fmt.Errorf("%s is %v: %w", e.id, info.GetState(), errEarly)
	case !e.expires.IsZero():
		return fmt.Errorf("%s should have expired at %v: %w", e.id, e.expires, errEarly)
	case e.fate == lives && info.GetIncarnation() != e.box.Incarnation:
		return fmt.Errorf("%s is incarnation %s, it was %s", e.id, info.GetIncarnation(), e.box.Incarnation)
	case e.fate != lives:
		// Nobody knows what it is; it must be usable all the same.
		_, err := e.tenant.client.Sandbox(e.id).Execute(ctx, sandgate.ExecuteRequest{Argv: []string{"true"}})
		return err
	}
	return e.whole(ctx)
}

// whole checks that nothing in the sandbox noticed.
func (e *entry) whole(ctx context.Context) error {
	if err := e.marked(ctx); err != nil {
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
