package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"time"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// AuditRecord says who did what to what, and how it went. It never holds
// contents, environment values or credentials.
type AuditRecord struct {
	Time      time.Time
	RequestID string
	Principal string
	Tenant    string
	Peer      string
	// Operation is the RPC's name, such as "Execute".
	Operation string
	SandboxID string
	ExecID    string
	// Path is the file that the call is about; of several, the first.
	Path string
	// Program is the first word of an argv, or the shell's path, and
	// CommandHash the SHA-256 of the whole command, so that equal commands can
	// be told without keeping them.
	Program     string
	CommandHash string
	// Code and Reason are how the call ended: "OK" and empty when it went well.
	Code     string
	Reason   string
	Duration time.Duration
	// Bytes is how much content or output went through.
	Bytes int64
}

// AuditSink takes audit records. It is called once per operation, from many
// goroutines, after the operation ended.
type AuditSink interface {
	Audit(ctx context.Context, r AuditRecord)
}

type noAudit struct{}

func (noAudit) Audit(context.Context, AuditRecord) {}

// SlogAudit writes audit records as log records.
type SlogAudit struct{ Logger *slog.Logger }

var _ AuditSink = SlogAudit{}

// Audit implements AuditSink.
func (s SlogAudit) Audit(ctx context.Context, r AuditRecord) {
	attrs := make([]slog.Attr, 0, 14)
	add := func(key, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(key, value))
		}
	}
	add("request_id", r.RequestID)
	add("principal", r.Principal)
	add("tenant", r.Tenant)
	add("peer", r.Peer)
	add("operation", r.Operation)
	add("sandbox_id", r.SandboxID)
	add("exec_id", r.ExecID)
	add("path", r.Path)
	add("program", r.Program)
	add("command_sha256", r.CommandHash)
	add("code", r.Code)
	add("reason", r.Reason)
	attrs = append(attrs, slog.Duration("duration", r.Duration), slog.Int64("bytes", r.Bytes))
	s.Logger.LogAttrs(ctx, slog.LevelInfo, "audit", attrs...)
}

// auditCommand notes which command was asked for.
func (r *AuditRecord) auditCommand(req *sandboxv1.ExecuteRequest) {
	h := sha256.New()
	switch c := req.GetCommand().(type) {
	case *sandboxv1.ExecuteRequest_Shell:
		r.Program = shellPath(req)
		h.Write([]byte(c.Shell))
	case *sandboxv1.ExecuteRequest_Argv:
		r.Program = c.Argv.GetArgs()[0]
		for _, a := range c.Argv.GetArgs() {
			h.Write([]byte(a))
			h.Write([]byte{0})
		}
	}
	r.CommandHash = hex.EncodeToString(h.Sum(nil))
}

func shellPath(req *sandboxv1.ExecuteRequest) string {
	if p := req.GetShellPath(); p != "" {
		return p
	}
	return "/bin/sh"
}
