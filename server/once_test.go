package server

import (
	"context"
	"slices"
	"sync"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sandgate/sandgate/agent/protocol"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// A call with effects whose connection breaks is sent again only to an agent
// that recognizes it. Any other outcome is unknown, and the error advises no
// retry.
func TestCallWithEffectsIsSentAgainOnlyIfRecognized(t *testing.T) {
	for name, c := range map[string]struct {
		replays, remake bool
		calls           int
		reason          string
	}{
		"agent that replays":      {replays: true, calls: 2},
		"agent that does not":     {calls: 1, reason: "AGENT_UNAVAILABLE"},
		"another incarnation":     {replays: true, remake: true, calls: 1, reason: "SANDBOX_REPLACED"},
		"replaced without a word": {remake: true, calls: 1, reason: "AGENT_UNAVAILABLE"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil)
			var mu sync.Mutex
			var ids []string
			h.provider.script.replays = c.replays
			h.provider.script.move = func(ctx context.Context, _ *sandboxv1.MoveFileRequest) (*sandboxv1.MoveFileResponse, error) {
				mu.Lock()
				ids = append(ids, metadata.ValueFromIncomingContext(ctx, protocol.CallIDKey)...)
				first := len(ids) == 1
				mu.Unlock()
				if first {
					p := h.sandbox("a")
					if c.remake {
						go h.provider.remake(p)
					} else {
						p.cut()
					}
					<-ctx.Done()
				}
				return &sandboxv1.MoveFileResponse{}, nil
			}
			h.create("a")
			_, err := h.client.MoveFile(t.Context(), &sandboxv1.MoveFileRequest{SandboxId: "a", Source: "/x", Destination: "/y"})
			mu.Lock()
			defer mu.Unlock()
			if len(ids) != c.calls || slices.Contains(ids, "") || len(ids) == 2 && ids[0] != ids[1] {
				t.Errorf("calls with the ids %q, want %d", ids, c.calls)
			}
			if c.reason == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			wantReason(t, err, c.reason)
			if c.reason != "AGENT_UNAVAILABLE" {
				return
			}
			if metadataOf(t, err)["outcome"] != "unknown" {
				t.Errorf("%v: %v", err, metadataOf(t, err))
			}
			for _, d := range status.Convert(err).Details() {
				if _, ok := d.(*errdetails.RetryInfo); ok {
					t.Error("it advises to try again")
				}
			}
		})
	}
}

// Two calls of a caller are two calls, also when they are the same.
func TestEqualCallsHaveDifferentIDs(t *testing.T) {
	h := newHarness(t, nil)
	var ids []string
	h.provider.script.move = func(ctx context.Context, _ *sandboxv1.MoveFileRequest) (*sandboxv1.MoveFileResponse, error) {
		ids = append(ids, metadata.ValueFromIncomingContext(ctx, protocol.CallIDKey)...)
		return &sandboxv1.MoveFileResponse{}, nil
	}
	h.create("a")
	for range 2 {
		if _, err := h.client.MoveFile(t.Context(), &sandboxv1.MoveFileRequest{SandboxId: "a", Source: "/x", Destination: "/y"}); err != nil {
			t.Fatal(err)
		}
	}
	if len(ids) != 2 || ids[0] == ids[1] {
		t.Errorf("two calls with the ids %q", ids)
	}
}
