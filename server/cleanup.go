package server

import (
	"context"
	"errors"
	"sync"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/policy"
)

// CleanupSandboxes implements SandboxService.
func (s *Server) CleanupSandboxes(ctx context.Context, req *sandboxv1.CleanupSandboxesRequest) (*sandboxv1.CleanupSandboxesResponse, error) {
	var v policy.Violations
	v.Labels("labels", req.GetLabels())
	v.Duration("max_idle", req.GetMaxIdle(), 0)
	if err := v.Err(); err != nil {
		return nil, err
	}
	resp := &sandboxv1.CleanupSandboxesResponse{}
	var mu sync.Mutex
	var work sync.WaitGroup
	slots := make(chan struct{}, reapDeletes)
	q := providers.Query{Tenant: callOf(ctx).principal.Tenant, Labels: req.GetLabels(), Limit: reapPage}
	for {
		page, err := s.provider.List(ctx, q)
		if err != nil {
			work.Wait()
			return nil, err
		}
		for _, info := range page.Sandboxes {
			if err := take(ctx, slots); err != nil {
				work.Wait()
				return nil, err
			}
			work.Go(func() {
				defer func() { <-slots }()
				var done bool
				err := fault.Catch(func() (err error) {
					done, err = s.cleanup(ctx, req, info)
					return err
				})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil:
					f := fault.From(ctx, err)
					resp.Failures = append(resp.Failures, &sandboxv1.CleanupFailure{SandboxId: info.Spec.ID, Message: f.Message})
					callOf(ctx).objects.addSandbox(info.Spec.ID, f)
				case done:
					if !req.GetDryRun() {
						callOf(ctx).objects.addSandbox(info.Spec.ID, nil)
					}
					resp.DeletedSandboxIds = append(resp.DeletedSandboxIds, info.Spec.ID)
				default:
					resp.Kept++
				}
			})
		}
		if q.Token = page.Next; q.Token == "" {
			work.Wait()
			return resp, context.Cause(ctx)
		}
	}
}

// cleanup deletes one sandbox if it is to go, and reports whether it is.
func (s *Server) cleanup(ctx context.Context, req *sandboxv1.CleanupSandboxesRequest, info providers.Info) (bool, error) {
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if req.GetMaxIdle() == nil {
		if !s.aged(info) && !s.idled(info) {
			return false, nil
		}
		if req.GetDryRun() {
			return true, nil
		}
		return s.expire(ctx, info)
	}
	limit := req.GetMaxIdle().AsDuration()
	if s.clock.since(info.LastActivity) < limit || info.State == providers.StateDeleting || info.State == providers.StateCreating {
		return false, nil
	}
	key := agentconn.KeyOf(info)
	if info.State == providers.StateActive {
		idle, err := s.idleTime(ctx, key)
		if err != nil {
			return false, ignoreNotFound(err)
		}
		if idle < limit {
			return false, nil
		}
	}
	if req.GetDryRun() {
		return true, nil
	}
	err := s.remove(ctx, key, providers.Condition{Incarnation: info.Incarnation, IdleSince: info.LastActivity})
	if errors.Is(err, providers.ErrNotFound) || errors.Is(err, providers.ErrReplaced) || errors.Is(err, providers.ErrInUse) {
		return false, nil
	}
	return err == nil, err
}
