package agent

import (
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sandgate/sandgate/agent/protocol"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// A call that needs a call context and has none, or a malformed one, does nothing.
func TestCallsWithoutCallContext(t *testing.T) {
	h := start(t, setup{})
	conn, err := grpc.NewClient("unix://"+h.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c := agentv1.NewAgentServiceClient(conn)
	path := filepath.Join(t.TempDir(), "f")
	for name, values := range map[string][]string{
		"missing": nil, "twice": {"", ""}, "malformed": {"\x0a\x07"}, "large": {strings.Repeat("\x12\x00", protocol.MaxCallContext/2+1)},
	} {
		ctx := metadata.NewOutgoingContext(testContext(t), metadata.MD{protocol.CallContextKey: values})
		_, wrote := c.WriteFile(ctx, &sandboxv1.WriteFileRequest{Path: path})
		calls := map[string]error{"WriteFile": wrote}
		if s, err := c.Execute(ctx, shell("touch "+path)); err == nil {
			_, calls["Execute"] = s.Recv()
		}
		if s, err := c.Download(ctx, &sandboxv1.DownloadRequest{Items: []*sandboxv1.DownloadItem{{Path: "/etc/passwd"}}}); err == nil {
			_, calls["Download"] = s.Recv()
		}
		if s, err := c.Upload(ctx); err == nil {
			_ = s.Send(&sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Header{Header: &sandboxv1.UploadHeader{Path: path}}})
			_, calls["Upload"] = s.CloseAndRecv()
		}
		for method, err := range calls {
			if status.Code(err) != codes.InvalidArgument || reasonOf(t, err) != "REQUEST_INVALID" ||
				!strings.Contains(status.Convert(err).Message(), protocol.CallContextKey) {
				t.Errorf("%s, %s: %v", name, method, err)
			}
		}
		if len(calls) != 4 {
			t.Errorf("%s: %d calls", name, len(calls))
		}
	}
	if found, _ := filepath.Glob(path); len(found) > 0 {
		t.Error("a call was carried out")
	}
	// Metadata beyond all bounds is rejected by gRPC.
	ctx := metadata.AppendToOutgoingContext(testContext(t), protocol.CallContextKey, strings.Repeat("x", protocol.MaxHeaderList))
	if _, err := c.StatFile(ctx, &sandboxv1.StatFileRequest{Path: "/"}); err == nil {
		t.Error("metadata beyond its bound was accepted")
	}
	if got := h.run(t, shell("echo still here")); string(got.all) != "still here\n" {
		t.Errorf("afterwards: %s, %v", got.all, got.err)
	}
}
