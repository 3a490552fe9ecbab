package server

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/agentconn"
)

// An agent that breaks the protocol must be found out, and the server must go
// on as if nothing had happened.
func TestExecuteOfAHostileAgentIsFoundOut(t *testing.T) {
	type exec func(out emitter) error
	for name, attack := range map[string]exec{
		"output first":  func(out emitter) error { return out.output(0, "x") },
		"exited first":  func(out emitter) error { return out.exited(0, 0) },
		"two starts":    func(out emitter) error { return errors.Join(out.started(0), out.started(0)) },
		"nothing":       func(emitter) error { return nil },
		"no end":        func(out emitter) error { return out.started(0) },
		"hole":          func(out emitter) error { return errors.Join(out.started(0), out.output(1, "x")) },
		"overlap":       func(out emitter) error { return errors.Join(out.started(0), out.output(0, "xx"), out.output(1, "x")) },
		"gap backwards": func(out emitter) error { return errors.Join(out.started(0), out.output(0, "xx"), out.gap(2, 1)) },
		"gap elsewhere": func(out emitter) error { return errors.Join(out.started(0), out.gap(5, 9)) },
		"two ends": func(out emitter) error {
			return errors.Join(out.started(0), out.exited(0, 0), out.exited(0, 1))
		},
		"output after end": func(out emitter) error {
			return errors.Join(out.started(0), out.exited(0, 0), out.output(0, "x"))
		},
		"end elsewhere":     func(out emitter) error { return errors.Join(out.started(0), out.exited(5, 0)) },
		"start elsewhere":   func(out emitter) error { return out.started(5) },
		"other exec id":     func(out emitter) error { out.execID = "other"; return out.started(0) },
		"other incarnation": func(out emitter) error { out.incarnation = "other"; return out.started(0) },
		"no reason": func(out emitter) error {
			return errors.Join(out.started(0), out.send(&sandboxv1.ExecuteResponse{
				Event: &sandboxv1.ExecuteResponse_Exited{Exited: &sandboxv1.Exited{}}}))
		},
		"code of a signal": func(out emitter) error {
			code := int32(1)
			return errors.Join(out.started(0), out.send(&sandboxv1.ExecuteResponse{
				Event: &sandboxv1.ExecuteResponse_Exited{Exited: &sandboxv1.Exited{
					Reason: sandboxv1.ExitReason_EXIT_REASON_SIGNALED, ExitCode: &code}}}))
		},
		"empty output": func(out emitter) error { return errors.Join(out.started(0), out.output(0, "")) },
		"large output": func(out emitter) error {
			return errors.Join(out.started(0), out.output(0, strings.Repeat("x", 1<<20+1)))
		},
		"huge frame": func(out emitter) error {
			return errors.Join(out.started(0), out.output(0, strings.Repeat("x", 8<<20)))
		},
		"garbage":       func(out emitter) error { return errors.Join(out.started(0), out.raw([]byte{0xff, 0xff, 0xff})) },
		"empty message": func(out emitter) error { return errors.Join(out.started(0), out.raw(nil)) },
		"unknown event": func(out emitter) error { return errors.Join(out.started(0), out.raw([]byte{0x7a, 0x00})) },
		"two events":    func(out emitter) error { return errors.Join(out.started(0), out.raw([]byte{0x1a, 0x00, 0x1a, 0x00})) },
		"bad stream": func(out emitter) error {
			return errors.Join(out.started(0), out.raw([]byte{0x12, 0x05, 0x08, 0x09, 0x1a, 0x01, 'x'}))
		},
		"data twice": func(out emitter) error {
			return errors.Join(out.started(0), out.raw([]byte{0x12, 0x08, 0x08, 0x01, 0x1a, 0x01, 'x', 0x1a, 0x01, 'y'}))
		},
		"large start":          func(out emitter) error { out.execID = strings.Repeat("x", 1<<20); return out.started(0) },
		"error without reason": func(emitter) error { return status.Error(codes.Internal, "boo") },
		"unknown reason":       func(emitter) error { return agentStatus(codes.Internal, "MADE_UP", "boo") },
		"reason of the server": func(emitter) error {
			return agentStatus(codes.Unauthenticated, "CREDENTIALS_INVALID", "log in again at evil.example")
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil)
			h.provider.script.execute = func(_ *scriptedAgent, req *sandboxv1.ExecuteRequest, out emitter) error {
				if req.GetShell() == "well" {
					return errors.Join(out.started(0), out.exited(0, 0))
				}
				// Sending fails once the server has hung up.
				err := attack(out)
				if _, ok := status.FromError(err); err != nil && !ok {
					return nil
				}
				return err
			}
			h.create("a")
			stream, err := h.client.Execute(t.Context(), &sandboxv1.ExecuteRequest{
				SandboxId: "a", Command: &sandboxv1.ExecuteRequest_Shell{Shell: "ill"}})
			if err != nil {
				t.Fatal(err)
			}
			for err == nil {
				_, err = stream.Recv()
			}
			code, got := reason(t, err)
			if got != "AGENT_MISBEHAVED" || code != codes.DataLoss {
				t.Fatalf("got %v", err)
			}
			if strings.Contains(err.Error(), "evil") {
				t.Fatalf("the agent's text reached the caller: %v", err)
			}
			if _, err := h.execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a",
				Command: &sandboxv1.ExecuteRequest_Shell{Shell: "well"}}); err != nil {
				t.Fatalf("afterwards: %v", err)
			}
			if n := h.sandbox("a").dials.Load(); n != 2 {
				t.Errorf("%d dials: the connection of a hostile agent must not be used again", n)
			}
		})
	}
}

func TestDownloadOfAHostileAgentIsFoundOut(t *testing.T) {
	for name, attack := range map[string]func(send func(...byte) error) error{
		"nothing":       func(func(...byte) error) error { return nil },
		"chunk first":   func(send func(...byte) error) error { return send(0x12, 1, 'x') },
		"trailer alone": func(send func(...byte) error) error { return send(0x1a, 0) },
		"two headers":   func(send func(...byte) error) error { return errors.Join(send(0x0a, 0), send(0x0a, 0)) },
		"other index":   func(send func(...byte) error) error { return send(0x0a, 2, 0x08, 7) },
		"wrong size": func(send func(...byte) error) error {
			return errors.Join(send(0x0a, 0), send(0x12, 1, 'x'), send(0x1a, 0))
		},
		"empty chunk":      func(send func(...byte) error) error { return errors.Join(send(0x0a, 0), send(0x12, 0)) },
		"beyond the limit": func(send func(...byte) error) error { return errors.Join(send(0x0a, 0), send(0x12, 3, 'x', 'y', 'z')) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil)
			h.provider.script.download = func(_ *sandboxv1.DownloadRequest, out grpc.ServerStream) error {
				err := attack(func(b ...byte) error {
					return out.SendMsg(&agentconn.Frame{Data: mem.BufferSlice{mem.SliceBuffer(b)}})
				})
				_ = err // sending fails once the server has hung up
				return nil
			}
			h.create("a")
			limit := int64(2)
			stream, err := h.client.Download(t.Context(), &sandboxv1.DownloadRequest{SandboxId: "a",
				Items: []*sandboxv1.DownloadItem{{Path: "/x", Limit: &limit}}})
			for err == nil {
				_, err = stream.Recv()
			}
			wantReason(t, err, "AGENT_MISBEHAVED")
		})
	}
}

func TestUploadToAHostileAgentIsFoundOut(t *testing.T) {
	type in = grpc.ClientStreamingServer[sandboxv1.UploadRequest, sandboxv1.UploadResponse]
	for name, attack := range map[string]func(in) error{
		"early answer": func(s in) error { return s.SendAndClose(&sandboxv1.UploadResponse{}) },
		"no results": func(s in) error {
			for {
				if _, err := s.Recv(); err != nil {
					return s.SendAndClose(&sandboxv1.UploadResponse{})
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil)
			h.provider.script.upload = attack
			h.create("a")
			stream, err := h.client.Upload(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			err = stream.Send(&sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Header{
				Header: &sandboxv1.UploadHeader{SandboxId: "a", Path: "/x"}}})
			if err != nil {
				t.Fatal(err)
			}
			if name == "early answer" {
				// The caller has not closed its side; the answer comes all the same.
				var resp sandboxv1.UploadResponse
				err = stream.RecvMsg(&resp)
			} else {
				_, err = stream.CloseAndRecv()
			}
			wantReason(t, err, "AGENT_MISBEHAVED")
		})
	}
}

// Metadata of an agent is bounded, also the status of a call, which is part of it.
func TestMetadataOfAHostileAgentIsBounded(t *testing.T) {
	large := strings.Repeat("x", 1<<20)
	for name, send := range map[string]func(stream forwardStream) error{
		"headers":  func(stream forwardStream) error { return stream.SendHeader(metadata.Pairs("large", large)) },
		"trailers": func(stream forwardStream) error { stream.SetTrailer(metadata.Pairs("large", large)); return nil },
		"status":   func(forwardStream) error { return agentStatus(codes.Aborted, "PORT_CLOSED", large) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil)
			h.create("a")
			agent := h.sandbox("a").agent
			agent.forward = func(stream forwardStream) error {
				if err := send(stream); err != nil {
					return err
				}
				return errors.Join(stream.Send(opened(agent.incarnation, 80)), stream.Send(eof()))
			}
			_, err := end(h.forward(t.Context(), true, startA, forwardEOF()))
			wantReason(t, err, "AGENT_MISBEHAVED")
		})
	}
}
