package server

import (
	"bytes"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Many calls to a hostile agent cost no more than its largest replies.
func TestManyLargeRepliesAreBounded(t *testing.T) {
	h := newHarness(t, nil)
	list := bytes.Repeat(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), nil), 2<<20-64)
	h.provider.script.raw = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), list)
	h.create("a")
	var failed atomic.Int32
	grown := peak(func() {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if _, err := h.client.ListProcesses(t.Context(), &sandboxv1.ListProcessesRequest{SandboxId: "a"}); err != nil {
					failed.Add(1)
				}
			})
		}
		wg.Wait()
	})
	// The agent is in this process: its copies count, too.
	t.Logf("the heap grew by %d MiB", grown>>20)
	if grown > 192<<20 || failed.Load() != 8 {
		t.Errorf("the heap grew by %d MiB, %d of 8 failed", grown>>20, failed.Load())
	}
}

// FuzzAgentReply: whatever an agent replies, the call ends, with a reason or a
// reply, and the server goes on.
func FuzzAgentReply(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0x0a, 0x00})
	f.Add([]byte{0x0a, 0x04, 0x0a, 0x02, 0x0a, 0x00})
	f.Add([]byte{0x0b, 0x0c})
	f.Add(bytes.Repeat([]byte{0x0a, 0x00}, 1000))
	f.Fuzz(func(t *testing.T, raw []byte) {
		h := newHarness(t, func(c *Config) { c.Timing.Reattach = 1 })
		h.provider.script.raw = raw
		h.provider.script.stat = func(*sandboxv1.StatFileRequest) (*sandboxv1.StatFileResponse, error) {
			reply := new(sandboxv1.StatFileResponse)
			reply.ProtoReflect().SetUnknown(raw)
			return reply, nil
		}
		h.create("a")
		for _, call := range []func() error{
			func() error {
				return call1(h.client.ListProcesses(t.Context(), &sandboxv1.ListProcessesRequest{SandboxId: "a"}))
			},
			func() error {
				return call1(h.client.StatFile(t.Context(), &sandboxv1.StatFileRequest{SandboxId: "a", Path: "/x"}))
			},
		} {
			if err := call(); err != nil {
				if _, got := reason(t, err); got != "AGENT_MISBEHAVED" {
					t.Errorf("got %v", err)
				}
			}
		}
	})
}
