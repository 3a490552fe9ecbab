package server

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/sandgate/sandgate/providers"
)

// AuditPhase is the moment of a call that a record describes.
type AuditPhase string

// Phases of a call. An admitted call has a started and an ended record with one
// request id. Any other call has a refused record only.
const (
	AuditStarted AuditPhase = "started"
	AuditEnded   AuditPhase = "ended"
	// AuditRefused is for calls that reached no handler: bad credentials, a
	// message that can't be decoded, a server that is stopping.
	AuditRefused AuditPhase = "refused"
)

// AuditRecord describes one moment of one call: the caller, the operation, its
// target and its outcome. It never holds contents, environment values or
// credentials. Texts of callers are truncated at 1 KiB.
type AuditRecord struct {
	Time      time.Time
	Phase     AuditPhase
	RequestID string
	// Principal and Tenant are empty until the caller is authenticated.
	Principal string
	Tenant    string
	// Issuer is what vouched for the principal, and Role the principal's.
	Issuer string
	Role   string
	Peer   string
	// Operation is the RPC's name, such as "Execute", or "Expire", or "Egress" for a
	// connection of a sandbox.
	Operation string
	SandboxID string
	ExecID    string
	// Path is the call's file, and Destination the file's new path.
	Path        string
	Destination string
	// Target is where a connection of a sandbox was to go, HOST:PORT. Address is the
	// address that it had, empty if it was not opened, or where in the sandbox a
	// Forward connects to, such as "localhost:3000".
	Target  string
	Address string
	// Objects counts the objects of a call that has several. Each has its own
	// records, in which Object counts from 1.
	Objects int
	Object  int
	// Program is the first word of an argv, or the shell's path, and
	// CommandHash the SHA-256 of the whole command, so that equal commands can
	// be recognized without storing them. CommandText is the command itself, and
	// empty unless Config.AuditCommandText is set.
	Program     string
	CommandHash string
	CommandText string
	// Template, Image, Network and Resources are those of a creation: at its
	// start as requested, at its end as granted.
	Template  string
	Image     string
	Network   string
	Resources providers.Resources
	// Code and Reason are the call's outcome: "OK" and empty if it succeeded.
	Code   string
	Reason string
	// ExitReason and ExitCode are the command's end, if the call reported it.
	ExitReason string
	ExitCode   *int32
	Duration   time.Duration
	// Bytes counts the content or output that the call moved.
	Bytes int64
	// Suppressed counts the refused calls without a record since the last record.
	Suppressed int64
}

// AuditSink stores audit records. Many goroutines call it. An error means that
// the record may be lost: the server counts and logs it, and rejects the call
// if Config.AuditRequired is set.
type AuditSink interface {
	Audit(ctx context.Context, r AuditRecord) error
}

type noAudit struct{}

func (noAudit) Audit(context.Context, AuditRecord) error { return nil }

// AuditLog writes audit records as lines of JSON. The lines of one AuditLog
// share "log", a random id, and "seq" numbers them from 1 without gaps, so that
// a missing record is visible.
type AuditLog struct {
	mu  sync.Mutex
	out io.Writer
	h   slog.Handler
	seq uint64
	// torn means that the last line may be incomplete.
	torn bool
}

var _ AuditSink = (*AuditLog)(nil)

// NewAuditLog returns an AuditLog that writes each record with one Write.
func NewAuditLog(out io.Writer) *AuditLog {
	h := slog.NewJSONHandler(out, nil).WithAttrs([]slog.Attr{slog.String("log", newID(""))})
	return &AuditLog{out: out, h: h}
}

// Audit implements AuditSink.
func (l *AuditLog) Audit(ctx context.Context, r AuditRecord) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	if l.torn {
		if _, err := l.out.Write([]byte{'\n'}); err != nil {
			return err
		}
	}
	line := slog.NewRecord(time.Now(), slog.LevelInfo, "audit", 0)
	line.AddAttrs(slog.Uint64("seq", l.seq))
	line.AddAttrs(r.attrs()...)
	err := l.h.Handle(ctx, line)
	l.torn = err != nil
	return err
}

// attrs returns the attributes that are not empty.
func (r *AuditRecord) attrs() []slog.Attr {
	attrs := make([]slog.Attr, 0, 20)
	text := func(key, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(key, value))
		}
	}
	number := func(key string, value int64) {
		if value != 0 {
			attrs = append(attrs, slog.Int64(key, value))
		}
	}
	text("phase", string(r.Phase))
	text("request_id", r.RequestID)
	text("principal", r.Principal)
	attrs = append(attrs, slog.String("tenant", r.Tenant))
	text("issuer", r.Issuer)
	text("role", r.Role)
	text("peer", r.Peer)
	text("operation", r.Operation)
	text("sandbox_id", r.SandboxID)
	text("exec_id", r.ExecID)
	number("objects", int64(r.Objects))
	number("object", int64(r.Object))
	text("path", r.Path)
	text("destination", r.Destination)
	text("target", r.Target)
	text("address", r.Address)
	text("program", r.Program)
	text("command_sha256", r.CommandHash)
	text("command", r.CommandText)
	text("template", r.Template)
	text("image", r.Image)
	text("network", r.Network)
	number("memory_bytes", r.Resources.MemoryBytes)
	number("cpu_millis", int64(r.Resources.CPUMillis))
	number("max_processes", int64(r.Resources.MaxProcesses))
	number("disk_bytes", r.Resources.DiskBytes)
	text("code", r.Code)
	text("reason", r.Reason)
	text("exit_reason", r.ExitReason)
	if r.ExitCode != nil {
		attrs = append(attrs, slog.Int("exit_code", int(*r.ExitCode)))
	}
	if r.Phase != AuditStarted {
		attrs = append(attrs, slog.Float64("duration_seconds", r.Duration.Seconds()), slog.Int64("bytes", r.Bytes))
	}
	number("suppressed", r.Suppressed)
	return attrs
}
