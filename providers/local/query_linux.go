package local

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// Get returns one sandbox.
func (p *Provider) Get(ctx context.Context, name string) (providers.Info, error) {
	if err := ctx.Err(); err != nil {
		return providers.Info{}, fmt.Errorf("get %s: %w", name, context.Cause(ctx))
	}
	rec, err := readRecord(p.layout.sandbox(name))
	if errors.Is(err, providers.ErrNotFound) {
		return providers.Info{}, fmt.Errorf("%s: %w", name, err)
	}
	if err != nil {
		// An unreadable record must not keep List from returning the others.
		return p.unreadable(name), nil
	}
	return p.info(name, rec), nil
}

// info returns a sandbox's record and its state, which depends on whether its
// first process still runs.
func (p *Provider) info(name string, rec *record) providers.Info {
	out := rec.Info(name)
	out.Incarnation, out.FromPool = rec.Incarnation, rec.FromPool
	out.Runtime, out.Unprivileged, out.ReadOnlySystem, out.NotEnforced = rec.Runtime, true, !rec.WritableRoot, rec.NotEnforced
	if rec.Image != "" {
		out.ImageDigest = "sha256:" + rec.Image
	}
	switch rec.Phase {
	case phaseCreating:
		out.State, out.Message = providers.StateCreating, p.pulling(rec.Spec)
	case phaseDeleting:
		out.State = providers.StateDeleting
	case phaseActive:
		out.State, out.Transport = providers.StateActive, "unix"
		if rec.Transport == TransportExec {
			out.Transport = "exec"
		}
		if !rec.Init.Alive() {
			out.State = providers.StateFailed
			out.Failure, out.Message = p.failureOf(rec.container(name), rec)
		}
	default:
		out.State = providers.StateUnknown
	}
	if reason := p.removals.reason(name); reason != "" {
		out.State, out.Message = providers.StateFailed, "it could not be removed, which is retried: "+reason
	}
	return out
}

// failureOf recognizes a lack of memory by the kernel's count of processes that
// it killed in the sandbox's cgroup. An agent that exited otherwise than by
// SIGKILL is not one of them.
func (p *Provider) failureOf(container string, rec *record) (providers.Failure, string) {
	if !rec.Init.ThisBoot() {
		return providers.FailureUnknown, "the machine was restarted"
	}
	n := p.cgroups.OOMKills(container)
	if n == 0 || rec.Init.EndedOtherwise(unix.SIGKILL) {
		return providers.FailureUnknown, "the agent ended"
	}
	return providers.FailureOutOfMemory, fmt.Sprintf("the agent ended after the kernel had killed %d of the sandbox's processes because memory ran out", n)
}

func (p *Provider) unreadable(name string) providers.Info {
	out := providers.Info{Name: name, State: providers.StateFailed, Message: shared.ErrCorrupt.Error()}
	if reason := p.removals.reason(name); reason != "" {
		out.Message = reason
	}
	return out
}

const tokens shared.Tokens = "local1"

// List reads the sandboxes in the order of their names.
func (p *Provider) List(ctx context.Context, q providers.Query) (providers.Page, error) {
	entries, err := os.ReadDir(p.layout.sandboxes())
	if err != nil {
		return providers.Page{}, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return tokens.Page(ctx, q, names, func(name string) (providers.Info, error) { return p.Get(ctx, name) })
}

// Update changes the record under the sandbox's lock.
func (p *Provider) Update(ctx context.Context, name string, c providers.Change) (providers.Info, error) {
	b := p.layout.sandbox(name)
	if !exists(string(b)) {
		return providers.Info{}, fmt.Errorf("update %s: %w", name, providers.ErrNotFound)
	}
	held, err := p.locks.Acquire(ctx, name)
	if err != nil {
		return providers.Info{}, err
	}
	defer func() { held.Release(!exists(string(b))) }()
	rec, err := readRecord(b)
	if err != nil {
		return providers.Info{}, fmt.Errorf("update %s: %w", name, err)
	}
	if rec.Phase != phaseActive {
		// Its lock was free: it is half made or half deleted.
		return providers.Info{}, providers.NotActive(p.info(name, rec), "update %s: it is %s", name, rec.Phase)
	}
	rec.Apply(c)
	if err := rec.write(b); err != nil {
		return providers.Info{}, p.space.TranslateError(err)
	}
	return p.info(name, rec), nil
}

// ChangeLedger implements providers.Ledger.
func (p *Provider) ChangeLedger(ctx context.Context, name string, change func([]byte) ([]byte, error)) error {
	return p.ledgers.Change(ctx, name, change)
}
