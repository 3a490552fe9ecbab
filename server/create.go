package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentcall"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/events"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/names"
	"github.com/sandgate/sandgate/server/policy"
)

// cleanupTimeout bounds the deletion of a sandbox whose creation failed.
const cleanupTimeout = 30 * time.Second

// CreateSandbox implements SandboxService.
func (s *Server) CreateSandbox(ctx context.Context, req *sandboxv1.CreateSandboxRequest) (*sandboxv1.CreateSandboxResponse, error) {
	id := req.GetSandboxId()
	if id == "" {
		id = names.NewID("sb-")
	}
	var v policy.Violations
	v.SandboxID(id)
	v.Labels("labels", req.GetLabels())
	if err := v.Err(); err != nil {
		return nil, err
	}
	key := agentcall.KeyOf(ctx, id)
	spec, err := s.rules().policy.Spec(key.Tenant, key.ID, req)
	if err != nil {
		return nil, err
	}
	timeout := s.rules().limits.CreateTimeout
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fault.New(
		sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_START_TIMEOUT,
		"the sandbox did not become ready within %s", timeout))
	defer cancel()
	spec.Principal = call.Of(ctx).Principal.Name
	if err := s.book.Reserve(ctx, key.Name, spec); err != nil {
		return nil, s.overQuota(ctx, err)
	}
	exists := ""
	defer func() { s.book.Settle(key.Name, exists) }()
	for range joinTries {
		info, conn, err := s.createNow(ctx, key, spec)
		if err != nil {
			return nil, err
		}
		exists = info.Incarnation
		s.expired.Remove(key.Name)
		s.agents.Adopt(ctx, key, info, conn)
		gone, err := s.ready(ctx, key, info)
		if err == nil {
			s.holdNetwork(info)
			s.awaitNetwork(ctx, info)
			if info.Created {
				s.noteEvent(ctx, events.Created, info)
			}
			return &sandboxv1.CreateSandboxResponse{Sandbox: s.sandbox(info), Created: info.Created}, nil
		}
		if gone {
			exists = ""
		}
		if info.Created || !gone {
			return nil, err
		}
		// The call that created it has deleted it, or another call has.
	}
	return nil, fault.AgentUnavailable(fmt.Errorf("the sandbox was deleted %d times while this call waited for it", joinTries))
}

// createNow creates the sandbox within the bound of concurrent creations.
func (s *Server) createNow(ctx context.Context, key agentconn.Key, spec providers.Spec) (providers.Info, net.Conn, error) {
	if s.creations != nil {
		release, ok := s.creations.try(key.Tenant)
		if !ok {
			// An existing sandbox needs no slot.
			info, err := s.agents.Lookup(ctx, key)
			if err == nil && info.State == providers.StateActive && info.Spec.Hash == spec.Hash {
				info.Created = false
				return info, nil, nil
			}
			begun := time.Now()
			if release, err = s.creations.take(ctx, key.Tenant); err != nil {
				return providers.Info{}, nil, err
			}
			s.metrics.CreateWait.Observe(time.Since(begun).Seconds())
		}
		defer release()
	}
	creating, pulled := providers.WithPulls(ctx)
	info, conn, err := s.provider.Create(creating, key.Name, spec)
	if c := call.Of(ctx); pulled() {
		c.Pulled = true
	}
	if errors.Is(err, providers.ErrExists) {
		return info, nil, fault.SpecDiffers(key.ID).WithCause(err)
	}
	return info, conn, err
}

// joinTries is how often a creation starts again after it found an existing
// sandbox that was then deleted.
const joinTries = 5

// ready checks that a command can run. If none can, it deletes a sandbox that
// this call created, unless another call has received it meanwhile. With an
// error it reports whether the sandbox is gone.
func (s *Server) ready(ctx context.Context, key agentconn.Key, info providers.Info) (gone bool, err error) {
	conn, err := s.router.AcquireKnown(ctx, key, info.Incarnation, &info)
	if err == nil {
		defer conn.Release()
		if info.Created || s.clock.Since(info.CreateTime) > s.rules().limits.CreateTimeout+cleanupTimeout {
			return false, nil
		}
		// The call that created it may still give up, and then deletes it unless it
		// was used.
		err = s.activity.Write(ctx, conn, laterThan(info.LastActivity))
	}
	if err == nil || !info.Created {
		return errors.Is(err, providers.ErrNotFound) || errors.Is(err, providers.ErrNotActive), err
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	undone := s.provider.Delete(undo, key.Name, providers.Condition{Incarnation: info.Incarnation, IdleSince: info.LastActivity})
	switch {
	case undone == nil:
		s.agents.Drop(key.Name)
		return true, err
	case errors.Is(undone, providers.ErrNotFound):
		return true, err
	case errors.Is(undone, providers.ErrInUse), errors.Is(undone, providers.ErrReplaced):
	default:
		s.log.ErrorContext(ctx, "a sandbox that could not be used could not be deleted",
			"tenant", key.Tenant, "sandbox_id", key.ID, "error", undone)
	}
	return false, err
}

// laterThan returns the present time, or a time just after stamp if another
// machine's clock is ahead.
func laterThan(stamp time.Time) time.Time {
	now := time.Now()
	if !now.After(stamp) {
		return stamp.Add(time.Millisecond)
	}
	return now
}
