package docker

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/directory"
	shared "github.com/sandgate/sandgate/providers/internal/record"
)

// Get returns one sandbox.
func (p *Provider) Get(ctx context.Context, name string) (providers.Info, error) {
	return p.store.Get(ctx, name)
}

// Update changes the record under the sandbox's lock.
func (p *Provider) Update(ctx context.Context, name string, c providers.Change) (providers.Info, error) {
	return p.store.Update(ctx, name, c)
}

// Delete ends a sandbox.
func (p *Provider) Delete(ctx context.Context, name string, c providers.Condition) error {
	return p.store.Delete(ctx, name, c)
}

// infoOf returns what the record has, with the state that it implies. An active
// sandbox has no state yet: its container decides.
func (p *Provider) infoOf(name string, rec *record) providers.Info {
	out := rec.Info(name)
	out.Unprivileged = rec.Unprivileged
	out.ImageDigest = rec.Image
	if rec.Phase == directory.Active {
		out.Transport = "exec"
		if rec.Transport == TransportSocket {
			out.Transport = "unix"
		}
	}
	return out
}

// observe returns a sandbox with the state that its container gives it.
func (p *Provider) observe(ctx context.Context, name string, rec *record) (providers.Info, error) {
	out := p.infoOf(name, rec)
	if rec.Phase != directory.Active {
		return out, nil
	}
	found, err := p.docker.ContainerInspect(ctx, rec.Container, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		out.State, out.Message = providers.StateFailed, "its container was removed"
		return out, nil
	}
	if err != nil {
		return out, p.daemonError(ctx, "inspect the container of "+name, err)
	}
	judge(&out, found.Container.State)
	return out, nil
}

// judge sets the state of an active sandbox by that of its container. Docker also
// reports a lack of memory if a command was killed, so the agent's own end decides.
func judge(out *providers.Info, s *container.State) {
	const killed = 128 + 9
	switch {
	case s != nil && s.Running:
		out.State = providers.StateActive
		if s.Paused {
			out.Message = "its container is paused"
		}
	case s != nil && s.OOMKilled && s.ExitCode == killed:
		out.State, out.Failure = providers.StateFailed, providers.FailureOutOfMemory
		out.Message = "the agent was killed because memory ran out"
	case s != nil:
		out.State, out.Message = providers.StateFailed, fmt.Sprintf("its container ended with exit code %d", s.ExitCode)
	default:
		out.State, out.Message = providers.StateFailed, "its container has no state"
	}
}

const tokens shared.Tokens = "docker1"

// List reads the sandboxes in the order of their names.
func (p *Provider) List(ctx context.Context, q providers.Query) (providers.Page, error) {
	all, err := p.layout.Names()
	if err != nil {
		return providers.Page{}, err
	}
	stateless := q
	stateless.States = nil
	running := running{p: p}
	return tokens.Page(ctx, q, all, func(name string) (providers.Info, error) { return p.listed(ctx, name, stateless, &running) })
}

// listed returns one sandbox, and ErrNotFound for one that the query excludes by its
// record alone. It inspects only containers that are not among the running ones.
func (p *Provider) listed(ctx context.Context, name string, q providers.Query, running *running) (providers.Info, error) {
	rec, err := readRecord(p.layout.Sandbox(name))
	if err != nil {
		return p.Get(ctx, name)
	}
	info := p.infoOf(name, rec)
	if !q.Matches(info) {
		return info, providers.ErrNotFound
	}
	if rec.Phase != directory.Active {
		return info, nil
	}
	has, err := running.has(ctx, rec.Container)
	if err != nil {
		return info, err
	}
	if has {
		info.State = providers.StateActive
		return info, nil
	}
	return p.observe(ctx, name, rec)
}

// running is the set of containers that run, listed when it is first needed.
type running struct {
	p     *Provider
	names map[string]bool
}

func (r *running) has(ctx context.Context, name string) (bool, error) {
	if r.names == nil {
		filters := make(client.Filters).Add("label", serverLabel+"="+r.p.id).Add("status", string(container.StateRunning))
		list, err := r.p.docker.ContainerList(ctx, client.ContainerListOptions{Filters: filters})
		if err != nil {
			return false, r.p.daemonError(ctx, "list containers", err)
		}
		r.names = make(map[string]bool, len(list.Items))
		for _, c := range list.Items {
			for _, n := range c.Names {
				r.names[n[1:]] = true // without the slash
			}
		}
	}
	return r.names[name], nil
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
