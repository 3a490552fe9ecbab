package server

import (
	"context"
	"regexp"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/policy"
)

var signalPattern = regexp.MustCompile(`^[A-Za-z0-9+-]{1,16}$`)

// SignalProcess implements SandboxService.
func (s *Server) SignalProcess(ctx context.Context, req *sandboxv1.SignalProcessRequest) (*sandboxv1.SignalProcessResponse, error) {
	var v policy.Violations
	v.SandboxID(req.GetSandboxId())
	v.ID("exec_id", req.GetExecId(), true)
	if !signalPattern.MatchString(req.GetSignal()) {
		v.Add("signal", "must be a signal's name, such as SIGTERM")
	}
	v.Enum("scope", int32(req.GetScope()), sandboxv1.SignalScope_name)
	if err := v.Err(); err != nil {
		return nil, err
	}
	return callAgent(ctx, s, req, nil, atMostOnce, func(ctx context.Context, a agentv1.AgentServiceClient, c *agentv1.Confinement, l *agentv1.Limits) (*agentv1.SignalProcessResponse, error) {
		return a.SignalProcess(ctx, &agentv1.SignalProcessRequest{Request: req, Confinement: c, Limits: l})
	})
}

// ResizeTerminal implements SandboxService.
func (s *Server) ResizeTerminal(ctx context.Context, req *sandboxv1.ResizeTerminalRequest) (*sandboxv1.ResizeTerminalResponse, error) {
	var v policy.Violations
	v.SandboxID(req.GetSandboxId())
	v.ID("exec_id", req.GetExecId(), true)
	v.Terminal("size", req.GetSize())
	if err := v.Err(); err != nil {
		return nil, err
	}
	return callAgent(ctx, s, req, nil, idempotent, func(ctx context.Context, a agentv1.AgentServiceClient, c *agentv1.Confinement, l *agentv1.Limits) (*agentv1.ResizeTerminalResponse, error) {
		return a.ResizeTerminal(ctx, &agentv1.ResizeTerminalRequest{Request: req, Confinement: c, Limits: l})
	})
}

// ListProcesses implements SandboxService.
func (s *Server) ListProcesses(ctx context.Context, req *sandboxv1.ListProcessesRequest) (*sandboxv1.ListProcessesResponse, error) {
	var v policy.Violations
	v.SandboxID(req.GetSandboxId())
	if err := v.Err(); err != nil {
		return nil, err
	}
	return callAgent(ctx, s, req, nil, idempotent, func(ctx context.Context, a agentv1.AgentServiceClient, c *agentv1.Confinement, l *agentv1.Limits) (*agentv1.ListProcessesResponse, error) {
		return a.ListProcesses(ctx, &agentv1.ListProcessesRequest{Request: req, Confinement: c, Limits: l})
	})
}
