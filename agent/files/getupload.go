package files

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// GetUpload returns the offset of a resumable upload. While a stream writes to it, the
// reason is UPLOAD_BUSY.
func (s *Service) GetUpload(ctx context.Context, r *sandboxv1.GetUploadRequest) (*sandboxv1.GetUploadResponse, error) {
	_, leave, err := s.enter(ctx, s.work)
	if err != nil {
		return nil, err
	}
	defer leave()
	id := r.GetUploadId()
	if !uploadID.MatchString(id) {
		return nil, requestFault("upload_id", "1 to 128 characters of a-z, A-Z, 0-9, \".\", \"_\", \"-\"")
	}
	path, offset, complete, expire, err := s.parts.state(id)
	if err != nil {
		return nil, err
	}
	return &sandboxv1.GetUploadResponse{
		Path: path, Offset: offset, Complete: complete, ExpireTime: timestamppb.New(expire),
	}, nil
}
