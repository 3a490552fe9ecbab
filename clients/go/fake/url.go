package fake

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// CreateSandboxUrl returns a URL that nothing serves.
func (s *Server) CreateSandboxUrl(_ context.Context, q *sandboxv1.CreateSandboxUrlRequest) (*sandboxv1.CreateSandboxUrlResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sandboxes[q.GetSandboxId()] == nil {
		return nil, Error(codes.NotFound, "SANDBOX_NOT_FOUND", "no such sandbox")
	}
	base := fmt.Sprintf("http://%d-x.localhost/", q.GetPort())
	if q.GetPath() != "" {
		base = "http://file-x.localhost" + q.GetPath()
	}
	return &sandboxv1.CreateSandboxUrlResponse{
		Url: base + "?sandgate_token=t", BaseUrl: base, Token: "t", Incarnation: q.GetExpectedIncarnation(), ExpireTime: timestamppb.Now(),
	}, nil
}
