package server

import (
	"context"
	"strings"
	"sync"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/events"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/limit"
	"github.com/sandgate/sandgate/server/policy"
)

// maxCleanups bounds the sandboxes that one call cleans up at the same time.
const maxCleanups = 32

// CleanupSandboxes implements SandboxService.
func (s *Server) CleanupSandboxes(ctx context.Context, req *sandboxv1.CleanupSandboxesRequest) (*sandboxv1.CleanupSandboxesResponse, error) {
	var v policy.Violations
	v.Labels("labels", req.GetLabels())
	v.Duration("max_idle", req.GetMaxIdle(), 0)
	if err := v.Err(); err != nil {
		return nil, err
	}
	var maxIdle *time.Duration
	if d := req.GetMaxIdle(); d != nil {
		idle := d.AsDuration()
		maxIdle = &idle
	}
	resp := &sandboxv1.CleanupSandboxesResponse{}
	var mu sync.Mutex
	var work sync.WaitGroup
	slots := limit.New(maxCleanups)
	q := providers.Query{Tenant: call.Of(ctx).Principal.Tenant, Labels: req.GetLabels(), Limit: maxPage}
	for {
		page, err := s.provider.List(ctx, q)
		if err != nil {
			work.Wait()
			return nil, err
		}
		for _, info := range page.Sandboxes {
			if !strings.HasPrefix(info.Spec.ID, call.Of(ctx).Principal.Scope.IDPrefix) {
				continue
			}
			if err := slots.Acquire(ctx); err != nil {
				work.Wait()
				return nil, err
			}
			work.Go(func() {
				defer slots.Release()
				var done bool
				err := fault.Catch(func() (err error) {
					done, err = s.reaper.CleanUp(ctx, info, maxIdle, req.GetDryRun())
					return err
				})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil:
					f := fault.From(ctx, err)
					resp.Failures = append(resp.Failures, &sandboxv1.CleanupFailure{SandboxId: info.Spec.ID, Message: f.Message})
					call.Of(ctx).Objects.AddSandbox(info.Spec.ID, f)
				case done:
					if !req.GetDryRun() {
						call.Of(ctx).Objects.AddSandbox(info.Spec.ID, nil)
						s.noteEvent(ctx, events.Ended, info)
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
