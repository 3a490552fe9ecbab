package server

import (
	"context"
	"errors"
	"strconv"

	"google.golang.org/grpc"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/admission"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/quota"
)

// enterStream counts a stream of the caller until leave.
func (s *Server) enterStream(ctx context.Context, info *grpc.StreamServerInfo) (leave func(), err error) {
	if !admission.HasPermission(info.FullMethod) {
		return func() {}, nil // health and reflection
	}
	leave, err = s.streams.Enter(ownerOf(call.Of(ctx).Principal), info.FullMethod == sandboxv1.SandboxService_Execute_FullMethodName)
	return leave, s.overQuota(ctx, err)
}

// overQuota counts a refusal, delays it if its owner has many, and turns it into the
// caller's error. It returns other errors as they are.
func (s *Server) overQuota(ctx context.Context, err error) error {
	if beyond := (*quota.Exceeded)(nil); errors.As(err, &beyond) {
		s.metrics.QuotaRefused(beyond.Quota)
		owner := beyond.Owner
		if owner.Tenant == "" {
			owner.Tenant = call.Of(ctx).Principal.Tenant // Others must not wait for this one.
		}
		s.pace.Wait(ctx, owner)
	}
	return quotaFault(err)
}

func ownerOf(p authn.Principal) quota.Owner { return quota.Owner{Tenant: p.Tenant, Principal: p.Name} }

// quotaFault turns an *quota.Exceeded into the caller's error, and returns others as
// they are.
func quotaFault(err error) error {
	var beyond *quota.Exceeded
	if !errors.As(err, &beyond) {
		return err
	}
	f := fault.New(sandboxv1.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED, "%s", beyond.Error()).
		With("quota", beyond.Quota).With("scope", beyond.Owner.Scope()).
		With("limit", strconv.FormatInt(beyond.Limit, 10)).With("used", strconv.FormatInt(beyond.Used, 10))
	if beyond.Never {
		return f.Final()
	}
	return f.RetryAfter(beyond.RetryAfter)
}

// quotas returns the caller's quotas with their use. An operator who names another
// tenant gets that tenant's alone.
func (s *Server) quotas(ctx context.Context) []*sandboxv1.Quota {
	c := call.Of(ctx)
	owner := ownerOf(c.Principal)
	if c.Elsewhere {
		owner.Principal = ""
	}
	all, err := s.book.Status(ctx, owner, s.streams)
	if err != nil {
		s.log.WarnContext(ctx, "the use of quotas could not be counted", "error", err)
	}
	var out []*sandboxv1.Quota
	for _, q := range all {
		out = append(out, &sandboxv1.Quota{Name: q.Quota, Scope: q.Owner.Scope(), Limit: q.Limit, Used: q.Used})
	}
	return out
}

// count keeps the book of sandboxes until the server halts.
func (s *Server) count() {
	ctx, cancel := s.untilHalt()
	defer cancel()
	s.book.Run(ctx, s.log)
}
