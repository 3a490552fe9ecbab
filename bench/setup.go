package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// maxMessage is what clients of ours allow; grpc's default of 4 MiB is for
// receiving only and would do, but a bench must not depend on it.
const maxMessage = 16 << 20

// bench is a running server and a connection to it.
type bench struct {
	dir    string
	scale  float64
	server *exec.Cmd
	output *bytes.Buffer
	conn   *grpc.ClientConn
	client sandboxv1.SandboxServiceClient
}

func newBench(ctx context.Context, binary string, flags []string, scale float64) (_ *bench, err error) {
	dir, err := os.MkdirTemp("", "sandgate-bench-")
	if err != nil {
		return nil, err
	}
	b := &bench{dir: dir, scale: scale, output: new(bytes.Buffer)}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	args := append([]string{"serve", "--listen", address, "--state-dir", filepath.Join(dir, "state")}, flags...)
	b.server = exec.Command(binary, args...)
	b.server.Stderr = b.output
	if err := b.server.Start(); err != nil {
		b.server = nil
		return nil, fmt.Errorf("starting %s (run `make build` first): %w", binary, err)
	}
	b.conn, err = dial(address)
	if err != nil {
		return nil, err
	}
	b.client = sandboxv1.NewSandboxServiceClient(b.conn)
	ready, cancel := context.WithTimeoutCause(ctx, 20*time.Second, errors.New("the server did not answer in 20 s"))
	defer cancel()
	if _, err := b.client.GetServerInfo(ready, &sandboxv1.GetServerInfoRequest{}, grpc.WaitForReady(true)); err != nil {
		return nil, fmt.Errorf("waiting for the server: %w\n%s", err, b.output)
	}
	return b, nil
}

// close is best effort: the figures are printed by now.
func (b *bench) close() {
	if b.conn != nil {
		_ = b.conn.Close()
	}
	if b.server != nil {
		_ = b.server.Process.Signal(syscall.SIGTERM)
		_ = b.server.Wait()
	}
	_ = os.RemoveAll(b.dir)
}

// count scales a number of repetitions.
func (b *bench) count(n int) int { return max(3, int(float64(n)*b.scale)) }

// size scales a number of bytes.
func (b *bench) size(n int64) int64 { return max(1<<20, int64(float64(n)*b.scale)) }

// sandbox makes a sandbox; the returned function deletes it.
func (b *bench) sandbox(ctx context.Context, id string) (func(), error) {
	return b.sandboxWith(ctx, id, nil)
}

func (b *bench) sandboxWith(ctx context.Context, id string, spec *sandboxv1.SandboxSpec) (func(), error) {
	_, err := b.client.CreateSandbox(ctx, &sandboxv1.CreateSandboxRequest{SandboxId: id, Spec: spec})
	if err != nil {
		return nil, err
	}
	return func() {
		// The bench's own context may have ended; the sandbox must go anyway.
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), 30*time.Second, errors.New("deleting took over 30 s"))
		defer cancel()
		_, err := b.client.DeleteSandbox(ctx, &sandboxv1.DeleteSandboxRequest{SandboxId: id, AllowMissing: true})
		if err != nil {
			slog.Warn("a sandbox is left over", "id", id, "error", err)
		}
	}, nil
}

func dial(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
}

// freeAddress returns a loopback address that was free a moment ago.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
