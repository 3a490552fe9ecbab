package server

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentcall"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/policy"
	"github.com/sandgate/sandgate/server/preview"
)

// CreateSandboxUrl implements SandboxService. It stores nothing: the URL's token holds
// all that it permits.
func (s *Server) CreateSandboxUrl(ctx context.Context, req *sandboxv1.CreateSandboxUrlRequest) (*sandboxv1.CreateSandboxUrlResponse, error) {
	urls := s.cfg.Preview
	if urls == nil {
		return nil, fault.Unsupported("url", "this server has no listener for URLs; its operator can add one with --preview-listen")
	}
	c := preview.Claims{Put: req.GetMethod() == sandboxv1.FileUrlMethod_FILE_URL_METHOD_PUT}
	ttl := min(preview.DefaultTTL, urls.MaxTTL())
	var v policy.Violations
	v.SandboxID(req.GetSandboxId())
	v.Enum("method", int32(req.GetMethod()), sandboxv1.FileUrlMethod_name)
	switch target := req.GetTarget().(type) {
	case *sandboxv1.CreateSandboxUrlRequest_Port:
		v.Port("port", target.Port)
		if req.GetMethod() != sandboxv1.FileUrlMethod_FILE_URL_METHOD_UNSPECIFIED {
			v.Add("method", "is for a path only")
		}
		if req.GetAccess() != nil {
			v.Add("access", "is for a path only")
		}
		c.Port = target.Port
	case *sandboxv1.CreateSandboxUrlRequest_Path:
		v.Path("path", target.Path)
		c.Path, c.Access = target.Path, req.GetAccess()
		v = append(v, policy.CheckAccess("access", req.GetAccess())...)
	default:
		v.Add("target", "port or path must be given")
	}
	if d := req.GetTtl(); d != nil {
		if ttl = d.AsDuration(); d.CheckValid() != nil || ttl < time.Second || ttl > urls.MaxTTL() {
			v.Add("ttl", "must be 1s to %s, which this server allows", urls.MaxTTL())
		}
	}
	if err := v.Err(); err != nil {
		return nil, err
	}
	key := agentcall.KeyOf(ctx, req.GetSandboxId())
	info, err := s.agents.Lookup(ctx, key)
	switch {
	case err != nil:
		return nil, s.router.NotFoundReason(key, err)
	case req.GetExpectedIncarnation() != "" && req.GetExpectedIncarnation() != info.Incarnation:
		return nil, fault.Replaced(key.ID, info.Incarnation)
	case info.State != providers.StateActive && info.State != providers.StateSuspended:
		return nil, fault.NotActive(info)
	}
	p := call.Of(ctx).Principal
	c.Tenant, c.SandboxID, c.Incarnation, c.Principal, c.Issuer = key.Tenant, key.ID, info.Incarnation, p.Name, p.Issuer
	c.Expires = time.Now().Add(ttl)
	u, err := urls.Create(c)
	switch {
	case errors.Is(err, preview.ErrTooLong):
		v.Add("target", "the path and the access policy must be shorter: the URL would have more than %d characters", preview.MaxLength)
		return nil, v.Err()
	case err != nil:
		return nil, err
	}
	return &sandboxv1.CreateSandboxUrlResponse{
		Url: u.URL, BaseUrl: u.Base, Token: u.Token, ExpireTime: timestamppb.New(c.Expires), Incarnation: info.Incarnation,
	}, nil
}
