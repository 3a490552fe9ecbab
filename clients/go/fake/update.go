package fake

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// UpdateSandbox changes labels and lifetimes.
func (s *Server) UpdateSandbox(_ context.Context, r *sandboxv1.UpdateSandboxRequest) (*sandboxv1.UpdateSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.sandbox(r.GetSandboxId(), "")
	if err != nil {
		return nil, err
	}
	info := proto.Clone(b.info).(*sandboxv1.Sandbox)
	labels := map[string]string{}
	maps.Copy(labels, info.GetLabels())
	maps.Copy(labels, r.GetSetLabels())
	for _, key := range r.GetRemoveLabels() {
		delete(labels, key)
	}
	info.Labels = labels
	if r.GetTtl() != nil {
		info.Ttl = r.GetTtl()
	}
	if r.GetIdleTtl() != nil {
		info.IdleTtl = r.GetIdleTtl()
	}
	if r.GetRenew() {
		info.LastActivityTime = timestamppb.Now()
	}
	if r.GetNetwork() != nil {
		spec := info.GetSpec()
		if spec == nil {
			spec = &sandboxv1.SandboxSpec{}
		}
		spec.Network = &sandboxv1.Network{Mode: spec.GetNetwork().GetMode(), Allow: r.GetNetwork().GetAllow()}
		info.Spec = spec
	}
	b.info = info
	return &sandboxv1.UpdateSandboxResponse{Sandbox: info}, nil
}

// CleanupSandboxes treats every sandbox as idle.
func (s *Server) CleanupSandboxes(_ context.Context, r *sandboxv1.CleanupSandboxesRequest) (*sandboxv1.CleanupSandboxesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reply := &sandboxv1.CleanupSandboxesResponse{}
	for _, id := range slices.Sorted(maps.Keys(s.sandboxes)) {
		switch {
		case r.GetMaxIdle() == nil:
			reply.Kept++
		case r.GetDryRun():
			reply.DeletedSandboxIds = append(reply.DeletedSandboxIds, id)
		case id == s.Stuck:
			reply.Failures = append(reply.Failures, &sandboxv1.CleanupFailure{SandboxId: id, Message: "it is stuck"})
		default:
			s.sandboxes[id].stop()
			delete(s.sandboxes, id)
			reply.DeletedSandboxIds = append(reply.DeletedSandboxIds, id)
		}
	}
	return reply, nil
}
