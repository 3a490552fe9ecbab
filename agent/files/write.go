package files

import (
	"context"
	"crypto/sha256"

	"github.com/sandgate/sandgate/agent/files/paths"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// WriteFile creates or replaces a small file.
func (s *Service) WriteFile(ctx context.Context, r *sandboxv1.WriteFileRequest) (*sandboxv1.WriteFileResponse, error) {
	ctx, c, err := s.open(ctx, s.work)
	if err != nil {
		return nil, err
	}
	defer c.leave()
	resp, err := s.writeFile(ctx, c.view, r, c.limits.GetMaxFileBytes())
	if err != nil {
		return nil, asFault(r.GetPath(), err)
	}
	return resp, nil
}

func (s *Service) writeFile(ctx context.Context, v *paths.View, r *sandboxv1.WriteFileRequest, limit int64) (*sandboxv1.WriteFileResponse, error) {
	content := r.GetContent()
	if limit > 0 && int64(len(content)) > limit {
		return nil, tooLargeFault(r.GetPath(), limit)
	}
	t, err := openTarget(v, r.GetPath(), paths.Write, optional(r.Mode != nil, r.GetMode()), r.GetCreateOnly())
	if err != nil {
		return nil, err
	}
	defer func() { _ = t.close() }()
	d, err := s.newDraft(t.loc.FD())
	if err != nil {
		return nil, err
	}
	created := false
	if _, err = d.Write(content); err == nil {
		created, err = s.land(ctx, t, d)
	}
	if err != nil {
		_ = d.discard()
		return nil, err
	}
	sum := sha256.Sum256(content)
	return &sandboxv1.WriteFileResponse{Size: int64(len(content)), Sha256: sum[:], Created: created}, nil
}
