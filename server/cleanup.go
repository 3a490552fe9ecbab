package server

import (
	"context"
	"errors"
	"sync"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
)

// CleanupSandboxes implements SandboxService.
func (s *Server) CleanupSandboxes(ctx context.Context, req *sandboxv1.CleanupSandboxesRequest) (*sandboxv1.CleanupSandboxesResponse, error) {
	var v violations
	v.labels("labels", req.GetLabels())
	v.duration("max_idle", req.GetMaxIdle(), 0)
	if err := v.err(); err != nil {
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
			slots <- struct{}{}
			work.Go(func() {
				defer func() { <-slots }()
				done, err := s.cleanup(ctx, req, info)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil:
					f := fold(ctx, err)
					resp.Failures = append(resp.Failures, &sandboxv1.CleanupFailure{SandboxId: info.Spec.ID, Message: f.message})
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
		if end := info.ExpireTime(); end.IsZero() || time.Now().Before(end) {
			return false, nil
		}
		if req.GetDryRun() {
			return true, nil
		}
		return s.expire(ctx, info)
	}
	limit := time.Now().Add(-req.GetMaxIdle().AsDuration())
	if info.LastActivity.After(limit) || info.State == providers.StateDeleting || info.State == providers.StateCreating {
		return false, nil
	}
	b := boxFor(info)
	if info.State == providers.StateActive {
		last, err := s.lastActivity(ctx, b)
		if err != nil {
			return false, ignoreNotFound(err)
		}
		if last.After(limit) {
			return false, nil
		}
	}
	if req.GetDryRun() {
		return true, nil
	}
	err := s.remove(ctx, b, providers.Condition{Incarnation: info.Incarnation})
	if errors.Is(err, providers.ErrNotFound) || errors.Is(err, providers.ErrReplaced) {
		return false, nil
	}
	return err == nil, err
}
