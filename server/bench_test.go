package server

import (
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/agentconn"
)

// The benchmarks measure the server's own hop: the agent is scripted and runs
// no process. Every connection is a unix socket.
func benchHarness(b *testing.B, s script) sandboxv1.SandboxServiceClient {
	b.Helper()
	p := newScriptedProvider(b)
	p.script, p.sockets = s, b.TempDir()
	srv, err := New(Config{Provider: p, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(b.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(agentconn.StreamWindow), grpc.WithStaticConnWindowSize(agentconn.ConnWindow))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		conn.Close()
		srv.grpc.Stop()
		if err := srv.Shutdown(b.Context()); err != nil && b.Context().Err() == nil {
			b.Error(err)
		}
		if err := <-served; err != nil {
			b.Error(err)
		}
		p.stop()
	})
	client := sandboxv1.NewSandboxServiceClient(conn)
	if _, err := client.CreateSandbox(b.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "a"}); err != nil {
		b.Fatal(err)
	}
	return client
}

func drain(b *testing.B, client sandboxv1.SandboxServiceClient) int64 {
	b.Helper()
	stream, err := client.Execute(b.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a",
		Command: &sandboxv1.ExecuteRequest_Shell{Shell: "true"}})
	if err != nil {
		b.Fatal(err)
	}
	var n int64
	for {
		m, err := stream.Recv()
		if err != nil {
			return n
		}
		n += int64(len(m.GetOutput().GetData()))
	}
}

func BenchmarkHopShort(b *testing.B) {
	client := benchHarness(b, script{})
	for b.Loop() {
		if drain(b, client) != 5 {
			b.Fatal("wrong output")
		}
	}
}

// BenchmarkHopUnary is a unary call with an access policy.
func BenchmarkHopUnary(b *testing.B) {
	client := benchHarness(b, script{})
	req := &sandboxv1.StatFileRequest{SandboxId: "a", Path: "/workspace/main.go",
		Access: &sandboxv1.AccessPolicy{RootDir: "/workspace", ReadDenyPrefixes: []string{"/workspace/.git", "/workspace/secrets"}}}
	for b.Loop() {
		if _, err := client.StatFile(b.Context(), req); err != nil {
			b.Fatal(err)
		}
	}
}

func benchmarkStream(b *testing.B, size int) {
	const total = 256 << 20
	piece := strings.Repeat("x", size)
	client := benchHarness(b, script{execute: func(_ *scriptedAgent, _ *sandboxv1.ExecuteRequest, out emitter) error {
		if err := out.started(0); err != nil {
			return err
		}
		p := int64(0)
		for ; p+int64(size) <= total; p += int64(size) {
			if err := out.output(p, piece); err != nil {
				return err
			}
		}
		return out.exited(p, 0)
	}})
	b.SetBytes(total)
	for b.Loop() {
		if n := drain(b, client); n < total-int64(size) {
			b.Fatal(n)
		}
	}
}

func BenchmarkHopStream256K(b *testing.B) { benchmarkStream(b, 256<<10) }
func BenchmarkHopStream32K(b *testing.B)  { benchmarkStream(b, 32_000) }
