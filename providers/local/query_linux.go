package local

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/directory"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// Get returns one sandbox.
func (p *Provider) Get(ctx context.Context, name string) (providers.Info, error) {
	return p.store.Get(ctx, name)
}

// info returns a sandbox's record and its state, which depends on whether its
// first process still runs.
func (p *Provider) info(name string, rec *record) providers.Info {
	out := rec.Info(name)
	out.Unprivileged = !rec.Root
	if rec.Image != "" {
		out.ImageDigest = "sha256:" + rec.Image
	}
	if rec.Phase == directory.Creating {
		out.Message = p.pulling(rec.Spec)
	}
	if rec.Phase == directory.Active {
		out.State, out.Transport = providers.StateActive, "unix"
		if rec.Transport == TransportExec {
			out.Transport = "exec"
		}
		if !rec.Init.Alive() {
			out.State = providers.StateFailed
			out.Failure, out.Message = p.failureOf(rec)
		}
	}
	if _, reason := p.removals.Of(name, rec.Incarnation); reason != "" {
		out.State, out.Message = providers.StateFailed, "it could not be removed, which is retried: "+reason
	}
	return out
}

// failureOf recognizes a lack of memory by the kernel's count of processes that
// it killed in the sandbox's cgroup. An agent that exited otherwise than by
// SIGKILL is not one of them.
func (p *Provider) failureOf(rec *record) (providers.Failure, string) {
	if !rec.Init.ThisBoot() {
		return providers.FailureUnknown, "the machine was restarted"
	}
	n := p.cgroups.OOMKills(rec.Container)
	if n == 0 || rec.Init.EndedOtherwise(unix.SIGKILL) {
		return providers.FailureUnknown, "the agent ended"
	}
	return providers.FailureOutOfMemory, fmt.Sprintf("the agent ended after the kernel had killed %d of the sandbox's processes because memory ran out", n)
}

const tokens shared.Tokens = "local1"

// List reads the sandboxes in the order of their names.
func (p *Provider) List(ctx context.Context, q providers.Query) (providers.Page, error) {
	names, err := p.layout.Names()
	if err != nil {
		return providers.Page{}, err
	}
	return tokens.Page(ctx, q, names, func(name string) (providers.Info, error) { return p.Get(ctx, name) })
}

// Update changes the record under the sandbox's lock.
func (p *Provider) Update(ctx context.Context, name string, c providers.Change) (providers.Info, error) {
	info, err := p.store.Update(ctx, name, c)
	if errno := unix.Errno(0); errors.As(err, &errno) {
		err = p.space.TranslateError(err)
	}
	return info, err
}

// ChangeLedger implements providers.Ledger.
func (p *Provider) ChangeLedger(ctx context.Context, name string, change func([]byte) ([]byte, error)) error {
	return p.ledgers.Change(ctx, name, change)
}

// Lead implements providers.Coordinator: several servers may share the state
// directory.
func (p *Provider) Lead(ctx context.Context, do func(context.Context)) { p.ledgers.Lead(ctx, do) }

// Lapses implements providers.Coordinator: the kernel releases no lock of a process that
// lives.
func (*Provider) Lapses() bool { return false }
