package server

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/fault"
)

// audited reports whether the call leaves audit records. Health checks and
// reflection do not.
func (c *call) audited() bool {
	return strings.HasPrefix(c.method, "/"+sandboxv1.SandboxService_ServiceDesc.ServiceName+"/")
}

// caller returns the principal, which is empty before authentication.
func (s *Server) caller(c *call) authn.Principal {
	if s.cfg.Authenticator != nil && c.principal.Name == "" {
		return authn.Principal{}
	}
	return c.principal
}

// record writes an audit record. It counts failures, and logs the first and the
// last of several in a row.
func (s *Server) record(ctx context.Context, r AuditRecord) error {
	err := s.cfg.Audit.Audit(ctx, r)
	if err != nil {
		s.metrics.auditFailures.Inc()
	}
	switch {
	case err != nil && s.auditLost.Add(1) == 1:
		s.log.ErrorContext(ctx, "the audit log cannot be written", "error", err)
	case err == nil && s.auditLost.Load() > 0:
		if lost := s.auditLost.Swap(0); lost > 0 {
			s.log.WarnContext(ctx, "the audit log can be written again", "lost_records", lost)
		}
	}
	return err
}

// begin writes the start records of a call, after authentication and decoding.
// An upload begins with its first header.
func (s *Server) begin(ctx context.Context, c *call, req any) error {
	if c.begun || !c.audited() {
		return nil
	}
	// The server chooses missing ids here, so that both records have them. With
	// an exec id it can find a command again after its connection breaks.
	switch m := req.(type) {
	case *sandboxv1.CreateSandboxRequest:
		if m.GetSandboxId() == "" {
			m.SandboxId = newID(cmp.Or(c.principal.Scope.IDPrefix, "sb-"))
		}
	case *sandboxv1.ExecuteRequest:
		if m.GetExecId() == "" {
			m.ExecId = newID("x-")
		}
	}
	c.audit.describe(req, s.cfg.AuditCommandText)
	c.objects.describe(req)
	c.audit.setCaller(s.caller(c))
	if err := inScope(c.principal.Scope, req); err != nil {
		return err
	}
	c.begun = true
	r := c.audit
	r.Phase = AuditStarted
	return s.requireAudit(s.recordAll(ctx, r, &c.objects))
}

// requireAudit rejects the call if its audit record could not be written and
// records are required.
func (s *Server) requireAudit(err error) error {
	if err == nil || !s.cfg.AuditRequired {
		return nil
	}
	return fault.New(sandboxv1.ErrorReason_ERROR_REASON_INTERNAL,
		"the server cannot write its audit log and refuses calls until it can").WithCause(err)
}

// finish writes the call's log line and the audit records of its end.
func (s *Server) finish(ctx context.Context, c *call, resp any, err error) {
	s.running.remove(c)
	code, reason, took := status.Code(err), reasonOf(err), time.Since(c.start)
	var suppressed int64
	s.metrics.ended(c, resp, err, took)
	if s.cfg.Authenticator != nil && c.principal.Name == "" && !isHealth(c.method) {
		s.metrics.refused.Inc()
		var recorded bool
		if suppressed, recorded = s.refusals.take(); !recorded {
			s.metrics.suppressed.Inc()
			return
		}
	}
	caller := s.caller(c)
	describeCall(ctx, c, caller.Tenant, reason)
	if c.audited() {
		r := c.audit
		r.Phase = AuditEnded
		if !c.begun {
			r.Phase = AuditRefused
		}
		r.setCaller(caller)
		r.Code, r.Reason, r.Duration = code.String(), reason, took
		r.Bytes, r.Suppressed = c.bytes.Load(), suppressed
		if e := c.exited.Load(); e != nil {
			r.ExitReason, r.ExitCode = exitReason(e), e.ExitCode
		}
		if created, ok := resp.(*sandboxv1.CreateSandboxResponse); ok && err == nil {
			r.Template = created.GetSandbox().GetTemplate()
			r.describeSpec(created.GetSandbox().GetSpec())
		}
		// The call has ended and can't be rejected any more.
		_ = s.recordAll(ctx, r, &c.objects)
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
		slog.String("method", fault.Clip(c.method, maxLoggedMethod)), slog.String("code", code.String()), slog.Duration("took", took),
		slog.String("request_id", c.requestID), slog.String("tenant", caller.Tenant),
	}
	if caller.Name != "" {
		attrs = append(attrs, slog.String("principal", caller.Name), slog.String("issuer", caller.Issuer), slog.String("role", caller.Role.String()))
	}
	if c.audit.Peer != "" && caller.Name == "" {
		attrs = append(attrs, slog.String("peer", c.audit.Peer))
	}
	if c.audit.SandboxID != "" {
		attrs = append(attrs, slog.String("sandbox_id", c.audit.SandboxID))
	}
	if reason != "" {
		attrs = append(attrs, slog.String("reason", reason))
	}
	if c.cause != nil {
		attrs = append(attrs, slog.String("error", auditText(c.cause.Error(), maxLogText)))
	}
	if suppressed > 0 {
		attrs = append(attrs, slog.Int64("suppressed", suppressed))
	}
	s.log.LogAttrs(ctx, level, "call", attrs...)
}

// logLifecycle logs created and deleted sandboxes. A failed call has no
// response, and may have deleted some before.
func (s *Server) logLifecycle(ctx context.Context, c *call, resp any, tenant string, took time.Duration) {
	line := func(what, id string, more ...any) {
		s.log.InfoContext(ctx, what, append([]any{"tenant", tenant, "sandbox_id", id, "request_id", c.requestID, "took", took}, more...)...)
	}
	switch m := resp.(type) {
	case *sandboxv1.CreateSandboxResponse:
		if m.GetCreated() {
			line("sandbox created", m.GetSandbox().GetSandboxId(),
				"template", m.GetSandbox().GetTemplate(), "from_pool", m.GetSandbox().GetFromPool())
		}
	case *sandboxv1.DeleteSandboxResponse:
		if m.GetDeleted() {
			line("sandbox deleted", c.audit.SandboxID)
		}
	case *sandboxv1.SuspendSandboxResponse:
		line("sandbox suspended", c.audit.SandboxID)
	case *sandboxv1.ResumeSandboxResponse:
		line("sandbox resumed", c.audit.SandboxID)
	}
	for _, id := range c.objects.deleted() {
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
func levelOf(c *call, code codes.Code) slog.Level {
	switch code {
	case codes.Internal, codes.DataLoss, codes.Unknown:
		return slog.LevelError
	case codes.Unauthenticated, codes.Unavailable:
		return slog.LevelWarn
	case codes.PermissionDenied:
		// An operator can configure a tenant for a caller without one.
		if c.refused != nil && c.principal.Name == "" {
			return slog.LevelWarn
		}
	case codes.FailedPrecondition, codes.ResourceExhausted, codes.DeadlineExceeded:
		switch c.method {
		case sandboxv1.SandboxService_CreateSandbox_FullMethodName, sandboxv1.SandboxService_ResumeSandbox_FullMethodName:
			return slog.LevelWarn
		}
	}
	return slog.LevelDebug
}

func reasonOf(err error) string {
	if err == nil {
		return ""
	}
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}
