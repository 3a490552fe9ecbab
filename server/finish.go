package server

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/audit"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/server/tracing"
	"github.com/sandgate/sandgate/server/wire"
)

// finish writes the call's log line and the audit records of its end.
func (s *Server) finish(ctx context.Context, c *call.Call, resp any, err error) {
	s.gate.Ended(c)
	code, reason, took := status.Code(err), fault.StatusReason(err), time.Since(c.Start)
	var suppressed int64
	s.metrics.Ended(c, resp, err, took)
	if s.gate.Anonymous(c) && !call.IsHealth(c.Method) {
		s.metrics.Refused.Inc()
		var recorded bool
		if suppressed, recorded = s.gate.RecordRefusal(); !recorded {
			s.metrics.Suppressed.Inc()
			return
		}
	}
	caller := s.gate.Caller(c)
	tracing.DescribeCall(ctx, c, caller.Tenant, reason)
	if call.IsService(c.Method) {
		r := c.Audit
		r.Phase = audit.Ended
		if !c.Begun {
			r.Phase = audit.Refused
		}
		r.SetCaller(caller)
		r.Code, r.Reason, r.Duration = code.String(), reason, took
		r.Bytes, r.Suppressed = c.Bytes.Load(), suppressed
		if e := c.Exited.Load(); e != nil {
			r.ExitReason, r.ExitCode = wire.ExitReason(e), e.ExitCode
		}
		if created, ok := resp.(*sandboxv1.CreateSandboxResponse); ok && err == nil {
			r.Template = created.GetSandbox().GetTemplate()
			r.DescribeSpec(created.GetSandbox().GetSpec())
		}
		// The call has ended and can't be rejected any more.
		_ = s.audit.RecordAll(ctx, r, &c.Objects)
	}
	if err != nil {
		resp = nil
	}
	s.logLifecycle(ctx, c, resp, caller.Tenant, took)
	level := levelOf(c, code)
	if !s.log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("method", fault.Clip(c.Method, maxLoggedMethod)), slog.String("code", code.String()), slog.Duration("took", took),
		slog.String("request_id", c.RequestID), slog.String("tenant", caller.Tenant),
	}
	if caller.Name != "" {
		attrs = append(attrs, slog.String("principal", caller.Name), slog.String("issuer", caller.Issuer), slog.String("role", caller.Role.String()))
	}
	if c.Audit.Peer != "" && caller.Name == "" {
		attrs = append(attrs, slog.String("peer", c.Audit.Peer))
	}
	if c.Audit.SandboxID != "" {
		attrs = append(attrs, slog.String("sandbox_id", c.Audit.SandboxID))
	}
	if reason != "" {
		attrs = append(attrs, slog.String("reason", reason))
	}
	if c.Cause != nil {
		attrs = append(attrs, slog.String("error", audit.Text(c.Cause.Error(), maxLogText)))
	}
	if suppressed > 0 {
		attrs = append(attrs, slog.Int64("suppressed", suppressed))
	}
	s.log.LogAttrs(ctx, level, "call", attrs...)
}

// logLifecycle logs created and deleted sandboxes. A failed call has no
// response, and may have deleted some before.
func (s *Server) logLifecycle(ctx context.Context, c *call.Call, resp any, tenant string, took time.Duration) {
	line := func(what, id string, more ...any) {
		s.log.InfoContext(ctx, what, append([]any{"tenant", tenant, "sandbox_id", id, "request_id", c.RequestID, "took", took}, more...)...)
	}
	switch m := resp.(type) {
	case *sandboxv1.CreateSandboxResponse:
		if m.GetCreated() {
			line("sandbox created", m.GetSandbox().GetSandboxId(),
				"template", m.GetSandbox().GetTemplate(), "from_pool", m.GetSandbox().GetFromPool())
		}
	case *sandboxv1.DeleteSandboxResponse:
		if m.GetDeleted() {
			line("sandbox deleted", c.Audit.SandboxID)
		}
	case *sandboxv1.SuspendSandboxResponse:
		line("sandbox suspended", c.Audit.SandboxID)
	case *sandboxv1.ResumeSandboxResponse:
		line("sandbox resumed", c.Audit.SandboxID)
	}
	for _, id := range c.Objects.Deleted() {
		line("sandbox deleted", id)
	}
}

// maxLoggedMethod bounds a method's name, which a caller may invent.
const maxLoggedMethod = 128

// maxLogText bounds the text of an error in the log, which may contain a
// caller's text. A panic's stack fits.
const maxLogText = 16 << 10

// levelOf returns the level of a call's log line: a warning if an operator can
// fix the cause, debug if only the caller can.
func levelOf(c *call.Call, code codes.Code) slog.Level {
	switch code {
	case codes.Internal, codes.DataLoss, codes.Unknown:
		return slog.LevelError
	case codes.Unauthenticated, codes.Unavailable:
		return slog.LevelWarn
	case codes.PermissionDenied:
		// An operator can configure a tenant for a caller without one.
		if c.Refused != nil && c.Principal.Name == "" {
			return slog.LevelWarn
		}
	case codes.FailedPrecondition, codes.ResourceExhausted, codes.DeadlineExceeded:
		switch c.Method {
		case sandboxv1.SandboxService_CreateSandbox_FullMethodName, sandboxv1.SandboxService_ResumeSandbox_FullMethodName:
			return slog.LevelWarn
		}
	}
	return slog.LevelDebug
}
