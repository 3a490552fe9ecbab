package fake

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// chunk is small, so that a file takes many.
const chunk = 1000

// File returns a file's content, and whether the file exists.
func (s *Server) File(sandbox, name string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	content, ok := s.sandboxes[sandbox].files[name]
	return string(content), ok
}

// SetFile writes a file.
func (s *Server) SetFile(sandbox, name, content string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sandboxes[sandbox].files[name] = []byte(content)
}

// Upload stores files. A path that ends in "/" is a directory.
func (s *Server) Upload(stream sandboxv1.SandboxService_UploadServer) error {
	reply := &sandboxv1.UploadResponse{}
	var header *sandboxv1.UploadHeader
	var content []byte
	var target *sandbox
	finish := func() {
		result := &sandboxv1.UploadResult{Path: header.GetPath()}
		reply.Results = append(reply.Results, result)
		if strings.HasSuffix(header.GetPath(), "/") {
			result.Error = &sandboxv1.FileError{Reason: sandboxv1.ErrorReason_ERROR_REASON_FILE_IS_DIRECTORY, Message: header.GetPath() + " is a directory"}
			return
		}
		sum := sha256.Sum256(content)
		result.Size, result.Sha256 = int64(len(content)), sum[:]
		s.mu.Lock()
		target.files[header.GetPath()] = content
		s.mu.Unlock()
	}
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if header != nil {
				return Error(codes.InvalidArgument, "UPLOAD_OUT_OF_ORDER", "the stream ended before the trailer of "+header.GetPath())
			}
			return stream.SendAndClose(reply)
		}
		if err != nil {
			return err
		}
		if message.GetTrailer() != nil {
			finish()
			header = nil
			continue
		}
		if h := message.GetHeader(); h != nil {
			s.mu.Lock()
			target, err = s.sandbox(h.GetSandboxId(), h.GetExpectedIncarnation())
			if err == nil && h.GetOffset() != int64(len(target.parts[h.GetUploadId()])) {
				err = Error(codes.OutOfRange, "UPLOAD_OFFSET_MISMATCH", "the upload does not go on from there")
			}
			if err == nil {
				header, content = h, slices.Clone(target.parts[h.GetUploadId()])
			}
			s.mu.Unlock()
			if err != nil {
				return err
			}
			continue
		}
		content = append(content, message.GetChunk()...)
		if header.GetUploadId() != "" {
			s.mu.Lock()
			target.parts[header.GetUploadId()] = slices.Clone(content)
			s.mu.Unlock()
		}
	}
}

// GetUpload returns the offset of an upload.
func (s *Server) GetUpload(_ context.Context, q *sandboxv1.GetUploadRequest) (*sandboxv1.GetUploadResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.sandbox(q.GetSandboxId(), q.GetExpectedIncarnation())
	if err != nil {
		return nil, err
	}
	part, ok := b.parts[q.GetUploadId()]
	if !ok {
		return nil, Error(codes.NotFound, "UPLOAD_NOT_FOUND", "there is no such upload")
	}
	return &sandboxv1.GetUploadResponse{Offset: int64(len(part))}, nil
}

// Download sends files.
func (s *Server) Download(q *sandboxv1.DownloadRequest, stream sandboxv1.SandboxService_DownloadServer) error {
	for i, item := range q.GetItems() {
		s.mu.Lock()
		b, err := s.sandbox(q.GetSandboxId(), q.GetExpectedIncarnation())
		if err != nil {
			s.mu.Unlock()
			return err
		}
		content, ok := b.files[item.GetPath()]
		isDirectory := slices.ContainsFunc(slices.Collect(maps.Keys(b.files)), func(name string) bool {
			return strings.HasPrefix(name, item.GetPath()+"/")
		})
		s.mu.Unlock()
		trailer := &sandboxv1.DownloadTrailer{Index: int32(i)}
		switch {
		case isDirectory:
			trailer.Error = &sandboxv1.FileError{Reason: sandboxv1.ErrorReason_ERROR_REASON_FILE_IS_DIRECTORY, Message: item.GetPath() + " is a directory"}
		case !ok:
			trailer.Error = &sandboxv1.FileError{Reason: sandboxv1.ErrorReason_ERROR_REASON_FILE_NOT_FOUND, Message: "there is no " + item.GetPath()}
		default:
			info := describe(item.GetPath(), content)
			content = content[min(item.GetOffset(), int64(len(content))):]
			if item.Limit != nil {
				content = content[:min(item.GetLimit(), int64(len(content)))]
			}
			sum := sha256.Sum256(content)
			trailer.Size, trailer.Sha256 = int64(len(content)), sum[:]
			err = stream.Send(&sandboxv1.DownloadResponse{Payload: &sandboxv1.DownloadResponse_Header{
				Header: &sandboxv1.DownloadHeader{Index: int32(i), Info: info, Offset: item.GetOffset()},
			}})
			for piece := range slices.Chunk(content, chunk) {
				if err == nil {
					err = stream.Send(&sandboxv1.DownloadResponse{Payload: &sandboxv1.DownloadResponse_Chunk{Chunk: piece}})
				}
			}
		}
		if err == nil {
			err = stream.Send(&sandboxv1.DownloadResponse{Payload: &sandboxv1.DownloadResponse_Trailer{Trailer: trailer}})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func describe(name string, content []byte) *sandboxv1.FileInfo {
	return &sandboxv1.FileInfo{Path: name, Type: sandboxv1.FileType_FILE_TYPE_REGULAR, Size: int64(len(content)), Mode: 0o640}
}

// StatFile describes a file, or a directory that has one below it.
func (s *Server) StatFile(_ context.Context, q *sandboxv1.StatFileRequest) (*sandboxv1.StatFileResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.sandbox(q.GetSandboxId(), q.GetExpectedIncarnation())
	if err != nil {
		return nil, err
	}
	if content, ok := b.files[q.GetPath()]; ok {
		return &sandboxv1.StatFileResponse{Info: describe(q.GetPath(), content)}, nil
	}
	for name := range b.files {
		if strings.HasPrefix(name, strings.TrimSuffix(q.GetPath(), "/")+"/") {
			return &sandboxv1.StatFileResponse{Info: &sandboxv1.FileInfo{Path: q.GetPath(), Type: sandboxv1.FileType_FILE_TYPE_DIRECTORY}}, nil
		}
	}
	return nil, Error(codes.NotFound, "FILE_NOT_FOUND", "there is no "+q.GetPath())
}

// ListDirectory lists the entries of a directory, one per page.
func (s *Server) ListDirectory(_ context.Context, q *sandboxv1.ListDirectoryRequest) (*sandboxv1.ListDirectoryResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.sandbox(q.GetSandboxId(), q.GetExpectedIncarnation())
	if err != nil {
		return nil, err
	}
	entries := map[string]*sandboxv1.FileInfo{}
	for name, content := range b.files {
		below, ok := strings.CutPrefix(name, strings.TrimSuffix(q.GetPath(), "/")+"/")
		if !ok {
			continue
		}
		first, _, deeper := strings.Cut(below, "/")
		entries[first] = describe(path.Join(q.GetPath(), first), content)
		if deeper {
			entries[first].Type = sandboxv1.FileType_FILE_TYPE_DIRECTORY
		}
	}
	reply := &sandboxv1.ListDirectoryResponse{}
	for name, entry := range entries {
		if name > q.GetPageToken() && (len(reply.GetEntries()) == 0 || entry.GetPath() < reply.GetEntries()[0].GetPath()) {
			reply.Entries = []*sandboxv1.FileInfo{entry}
			reply.NextPageToken = name
		}
	}
	return reply, nil
}

// MakeDirectory does nothing.
func (s *Server) MakeDirectory(context.Context, *sandboxv1.MakeDirectoryRequest) (*sandboxv1.MakeDirectoryResponse, error) {
	return &sandboxv1.MakeDirectoryResponse{Created: true}, nil
}
