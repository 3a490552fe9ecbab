package local

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/internal/directory"
)

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

// Update changes the record under the sandbox's lock.
func (p *Provider) Update(ctx context.Context, name string, c providers.Change) (providers.Info, error) {
	info, err := p.sandboxes.Update(ctx, name, c)
	if errno := unix.Errno(0); errors.As(err, &errno) {
		err = p.space.TranslateError(err)
	}
	return info, err
}
