package server

import (
	"time"

	"google.golang.org/grpc"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/quota"
)

// Execute implements SandboxService.
func (s *Server) Execute(req *sandboxv1.ExecuteRequest, stream grpc.ServerStreamingServer[sandboxv1.ExecuteResponse]) error {
	return s.exec.Execute(req, stream)
}

// Attach implements SandboxService.
func (s *Server) Attach(req *sandboxv1.AttachRequest, stream grpc.ServerStreamingServer[sandboxv1.AttachResponse]) error {
	return s.exec.Attach(req, stream)
}

// Upload implements SandboxService. It takes a slot before it reads a message.
func (s *Server) Upload(stream grpc.ClientStreamingServer[sandboxv1.UploadRequest, sandboxv1.UploadResponse]) error {
	tenant := call.Of(stream.Context()).Principal.Tenant
	if !s.uploads.TryTake(tenant) {
		return s.overRequests(s.tooManyUploads(tenant))
	}
	defer s.uploads.Release(tenant)
	return s.transfer.Upload(stream)
}

func (s *Server) tooManyUploads(tenant string) error {
	owner, n := quota.Owner{Tenant: tenant}, s.uploads.PerTenant()
	if taken, all := s.uploads.Used(); taken == all {
		owner, n = quota.Owner{}, all
	}
	return &quota.Exceeded{Quota: quota.MaxUploads, Owner: owner, Limit: int64(n), Used: int64(n), Asked: 1, RetryAfter: time.Second}
}

// Download implements SandboxService.
func (s *Server) Download(req *sandboxv1.DownloadRequest, stream grpc.ServerStreamingServer[sandboxv1.DownloadResponse]) error {
	return s.transfer.Download(req, stream)
}

// Forward implements SandboxService.
func (s *Server) Forward(stream grpc.BidiStreamingServer[sandboxv1.ForwardRequest, sandboxv1.ForwardResponse]) error {
	return s.forward.Forward(stream)
}
