package fake

import (
	"context"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// SuspendSandbox ends the commands of a sandbox and keeps its files.
func (s *Server) SuspendSandbox(_ context.Context, r *sandboxv1.SuspendSandboxRequest) (*sandboxv1.SuspendSandboxResponse, error) {
	info, err := s.setState(r.GetSandboxId(), sandboxv1.SandboxState_SANDBOX_STATE_SUSPENDED)
	return &sandboxv1.SuspendSandboxResponse{Sandbox: info}, err
}

// ResumeSandbox resumes a suspended sandbox, as a new incarnation.
func (s *Server) ResumeSandbox(_ context.Context, r *sandboxv1.ResumeSandboxRequest) (*sandboxv1.ResumeSandboxResponse, error) {
	info, err := s.setState(r.GetSandboxId(), sandboxv1.SandboxState_SANDBOX_STATE_ACTIVE)
	return &sandboxv1.ResumeSandboxResponse{Sandbox: info}, err
}

// setState brings a sandbox into a state, unless it has it already.
func (s *Server) setState(id string, to sandboxv1.SandboxState) (*sandboxv1.Sandbox, error) {
	if s.CannotSuspend {
		return nil, Error(codes.Unimplemented, "FEATURE_UNSUPPORTED", "the provider fake cannot suspend sandboxes")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.sandbox(id, "")
	if err != nil {
		return nil, err
	}
	if b.info.GetState() == to {
		return b.info, nil
	}
	b.stop()
	b.runs, b.order = map[string]*Run{}, nil
	b.info = proto.Clone(b.info).(*sandboxv1.Sandbox)
	b.info.State = to
	if to == sandboxv1.SandboxState_SANDBOX_STATE_ACTIVE {
		b.info.Incarnation += "'"
	}
	return b.info, nil
}

// active returns an error if the sandbox is not active.
func (b *sandbox) active() error {
	if b.info.GetState() == sandboxv1.SandboxState_SANDBOX_STATE_ACTIVE {
		return nil
	}
	const reason = "SANDBOX_NOT_ACTIVE"
	return Error(codes.FailedPrecondition, reason, "the sandbox is suspended; resume it first", &errdetails.ErrorInfo{
		Reason: reason, Domain: "sandgate",
		Metadata: map[string]string{"sandbox_id": b.info.GetSandboxId(), "state": "SUSPENDED"},
	})
}
