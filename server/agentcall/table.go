package agentcall

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/policy"
	"github.com/sandgate/sandgate/streaming"
)

type agent = agentv1.AgentServiceClient

// table are the unary calls that the server checks and passes on to the
// sandbox's agent. A row has the agent's method, whether the call may be sent
// again, and the checks of the request beside those of its sandbox_id.
var table = []row{
	passOn(agent.SignalProcess, atMostOnce, func(v *policy.Violations, r *sandboxv1.SignalProcessRequest) {
		v.ID("exec_id", r.GetExecId(), true)
		if !signalPattern.MatchString(r.GetSignal()) {
			v.Add("signal", "must be a signal's name, such as SIGTERM")
		}
		v.Enum("scope", int32(r.GetScope()), sandboxv1.SignalScope_name)
	}),
	passOn(agent.ResizeTerminal, idempotent, func(v *policy.Violations, r *sandboxv1.ResizeTerminalRequest) {
		v.ID("exec_id", r.GetExecId(), true)
		v.Terminal("size", r.GetSize())
	}),
	passOn(agent.ListProcesses, idempotent, func(*policy.Violations, *sandboxv1.ListProcessesRequest) {}),
	// Offsets make it safe to repeat.
	passOn(agent.WriteStdin, idempotent, func(v *policy.Violations, r *sandboxv1.WriteStdinRequest) {
		v.ID("exec_id", r.GetExecId(), true)
		v.NotNegative("offset", r.GetOffset())
		if len(r.GetData()) > streaming.MaxChunk {
			v.Add("data", "must be at most %d bytes", streaming.MaxChunk)
		}
	}),

	passOn(agent.GetUpload, idempotent, func(v *policy.Violations, r *sandboxv1.GetUploadRequest) {
		v.ID("upload_id", r.GetUploadId(), true)
	}),
	passOn(agent.StatFile, idempotent, func(v *policy.Violations, r *sandboxv1.StatFileRequest) {
		v.Path("path", r.GetPath())
	}),
	passOn(agent.ListDirectory, idempotent, func(v *policy.Violations, r *sandboxv1.ListDirectoryRequest) {
		v.Path("path", r.GetPath())
		v.NotNegative("page_size", int64(r.GetPageSize()))
	}),
	passOn(agent.ReadLines, idempotent, func(v *policy.Violations, r *sandboxv1.ReadLinesRequest) {
		v.Path("path", r.GetPath())
		v.NotNegative("offset", r.GetOffset())
		v.NotNegative("limit", r.GetLimit())
		v.NotNegative("max_bytes", r.GetMaxBytes())
	}),
	passOn(agent.SearchFiles, idempotent, func(v *policy.Violations, r *sandboxv1.SearchFilesRequest) {
		v.Path("path", r.GetPath())
		v.NotEmpty("pattern", len(r.GetPattern()))
		v.Enum("syntax", int32(r.GetSyntax()), sandboxv1.PatternSyntax_name)
		v.NotNegative("max_matches", int64(r.GetMaxMatches()))
		v.NotNegative("max_file_bytes", r.GetMaxFileBytes())
		v.ContextLines("context_before", r.GetContextBefore())
		v.ContextLines("context_after", r.GetContextAfter())
	}),
	passOn(agent.GlobFiles, idempotent, func(v *policy.Violations, r *sandboxv1.GlobFilesRequest) {
		v.Path("path", r.GetPath())
		v.NotEmpty("pattern", len(r.GetPattern()))
		v.NotNegative("max_results", int64(r.GetMaxResults()))
	}),

	passOn(agent.MakeDirectory, atMostOnce, func(v *policy.Violations, r *sandboxv1.MakeDirectoryRequest) {
		v.Path("path", r.GetPath())
		v.Mode(r.Mode)
	}),
	passOn(agent.MoveFile, atMostOnce, func(v *policy.Violations, r *sandboxv1.MoveFileRequest) {
		v.Path("source", r.GetSource())
		v.Path("destination", r.GetDestination())
	}),
	passOn(agent.RemoveFile, atMostOnce, func(v *policy.Violations, r *sandboxv1.RemoveFileRequest) {
		v.Path("path", r.GetPath())
	}),
	passOn(agent.WriteFile, atMostOnce, func(v *policy.Violations, r *sandboxv1.WriteFileRequest) {
		v.Path("path", r.GetPath())
		v.Mode(r.Mode)
	}),
	passOn(agent.EditFile, atMostOnce, func(v *policy.Violations, r *sandboxv1.EditFileRequest) {
		v.Path("path", r.GetPath())
		if !r.GetAllowEmptyOld() {
			v.NotEmpty("old_text", len(r.GetOldText()))
		}
	}),
}

var signalPattern = regexp.MustCompile(`^[A-Za-z0-9+-]{1,16}$`)

// Handlers returns desc with handlers for the calls of the table.
func (r *Router) Handlers(desc grpc.ServiceDesc) grpc.ServiceDesc {
	desc.Methods = slices.Clone(desc.Methods)
	for _, row := range table {
		i := slices.IndexFunc(desc.Methods, func(m grpc.MethodDesc) bool { return m.MethodName == row.method })
		desc.Methods[i].Handler = func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			return row.handle(ctx, r, decode)
		}
	}
	return desc
}

// row is a method of SandboxService that the server passes on.
type row struct {
	// method is its name, such as "StatFile".
	method string
	handle func(ctx context.Context, r *Router, decode func(any) error) (any, error)
}

// passOn returns the row of one method. The request's type gives it its name.
func passOn[Req, Resp any, P interface {
	*Req
	proto.Message
	sandboxRequest
}](
	send func(agent, context.Context, *Req, ...grpc.CallOption) (*Resp, error),
	sem semantics, check func(*policy.Violations, *Req),
) row {
	name := P(nil).ProtoReflect().Descriptor().Name()
	return row{method: strings.TrimSuffix(string(name), "Request"), handle: func(ctx context.Context, r *Router, decode func(any) error) (any, error) {
		req := P(new(Req))
		if err := decode(req); err != nil {
			return nil, err
		}
		var v policy.Violations
		v.SandboxID(req.GetSandboxId())
		check(&v, req)
		if err := v.Err(); err != nil {
			return nil, err
		}
		call.Of(ctx).Bytes.Store(contentBytes(req))
		return callAgent(ctx, r, req, sem, func(ctx context.Context, a agent) (*Resp, error) { return send(a, ctx, req) })
	}}
}

// contentBytes returns how much content a request brings.
func contentBytes(req any) int64 {
	switch r := req.(type) {
	case *sandboxv1.WriteStdinRequest:
		return int64(len(r.GetData()))
	case *sandboxv1.WriteFileRequest:
		return int64(len(r.GetContent()))
	}
	return 0
}
