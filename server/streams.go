package server

import (
	"google.golang.org/grpc"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Execute implements SandboxService.
func (s *Server) Execute(req *sandboxv1.ExecuteRequest, stream grpc.ServerStreamingServer[sandboxv1.ExecuteResponse]) error {
	return s.exec.Execute(req, stream)
}

// Attach implements SandboxService.
func (s *Server) Attach(req *sandboxv1.AttachRequest, stream grpc.ServerStreamingServer[sandboxv1.AttachResponse]) error {
	return s.exec.Attach(req, stream)
}

// Upload implements SandboxService.
func (s *Server) Upload(stream grpc.ClientStreamingServer[sandboxv1.UploadRequest, sandboxv1.UploadResponse]) error {
	return s.transfer.Upload(stream)
}

// Download implements SandboxService.
func (s *Server) Download(req *sandboxv1.DownloadRequest, stream grpc.ServerStreamingServer[sandboxv1.DownloadResponse]) error {
	return s.transfer.Download(req, stream)
}

// Forward implements SandboxService.
func (s *Server) Forward(stream grpc.BidiStreamingServer[sandboxv1.ForwardRequest, sandboxv1.ForwardResponse]) error {
	return s.forward.Forward(stream)
}
