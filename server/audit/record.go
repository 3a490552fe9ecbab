// Package audit describes who did what: the records of calls, and the log that keeps
// them.
package audit

import (
	"context"
	"log/slog"
	"time"

	"github.com/sandgate/sandgate/providers"
)

// Phase is the moment of a call that a record describes.
type Phase string

// Phases of a call. An admitted call has a started and an ended record with one
// request id. Any other call has a refused record only.
const (
	Started Phase = "started"
	Ended   Phase = "ended"
	// Refused is for calls that reached no handler: bad credentials, a
	// message that can't be decoded, a server that is stopping.
	Refused Phase = "refused"
)

// Record describes one moment of one call: the caller, the operation, its
// target and its outcome. It never holds contents, environment values or
// credentials. Texts of callers are truncated at 1 KiB.
type Record struct {
	Time      time.Time
	Phase     Phase
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
	// empty unless Recorder.CommandText is set.
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

// Sink stores audit records. Many goroutines call it. An error means that
// the record may be lost: the server counts and logs it, and rejects the call
// if Recorder.Required is set.
type Sink interface {
	Audit(ctx context.Context, r Record) error
}

// Nowhere is a Sink that stores nothing.
type Nowhere struct{}

// Audit implements Sink.
func (Nowhere) Audit(context.Context, Record) error { return nil }

// attrs returns the attributes that are not empty.
func (r *Record) attrs() []slog.Attr {
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
	if r.Phase != Started {
		attrs = append(attrs, slog.Float64("duration_seconds", r.Duration.Seconds()), slog.Int64("bytes", r.Bytes))
	}
	number("suppressed", r.Suppressed)
	return attrs
}
