package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/test/daemon"
)

// maxMessage is the limit that Sandgate's clients set. gRPC's default of 4 MiB, which
// bounds only received messages, would do, but a bench must not depend on it.
const maxMessage = 16 << 20

// bench is a running server and a connection to it.
type bench struct {
	binary  string
	flags   []string
	address string
	dir     string
	scale   float64
	server  *daemon.Daemon
	log     *daemon.Log
	conn    *grpc.ClientConn
	client  sandboxv1.SandboxServiceClient
}

func newBench(ctx context.Context, binary string, flags []string, scale float64) (_ *bench, err error) {
	dir, err := os.MkdirTemp("", "sandgate-bench-")
	if err != nil {
		return nil, err
	}
	b := &bench{binary: binary, flags: flags, dir: dir, scale: scale, address: "127.0.0.1:0", log: new(daemon.Log)}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if err := b.start(ctx); err != nil {
		return nil, err
	}
	if b.conn, err = dial(b.address); err != nil {
		return nil, err
	}
	b.client = sandboxv1.NewSandboxServiceClient(b.conn)
	return b, nil
}

// start starts the server at the bench's address.
func (b *bench) start(ctx context.Context, more ...string) (err error) {
	b.server, err = daemon.Start(ctx, daemon.Options{
		Program: b.binary, Listen: b.address, Log: b.log,
		Args: slices.Concat([]string{"--state-dir", filepath.Join(b.dir, "state")}, b.flags, more),
	})
	if err == nil {
		b.address = b.server.Address
	}
	return err
}

// serve replaces the running server with one that has more flags.
func (b *bench) serve(ctx context.Context, more ...string) error {
	b.stop()
	if err := b.start(ctx, more...); err != nil {
		return err
	}
	ready, cancel := context.WithTimeoutCause(ctx, 20*time.Second, errors.New("the server did not answer in 20 s"))
	defer cancel()
	if _, err := b.client.GetServerInfo(ready, &sandboxv1.GetServerInfoRequest{}, grpc.WaitForReady(true)); err != nil {
		return b.server.Explain(fmt.Errorf("waiting for the server: %w", err))
	}
	return nil
}

// serveConfig is serve with a configuration file.
func (b *bench) serveConfig(ctx context.Context, config string) error {
	file := filepath.Join(b.dir, "config.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return err
	}
	return b.serve(ctx, "--config", file)
}

// stop stops the server, if one runs. Its sandboxes remain.
func (b *bench) stop() {
	if b.server != nil {
		_ = b.server.Stop()
	}
	b.server = nil
}

// close ignores errors: the figures are printed already.
func (b *bench) close() {
	if b.conn != nil {
		_ = b.conn.Close()
	}
	b.stop()
	_ = os.RemoveAll(b.dir)
}

// count scales a number of repetitions.
func (b *bench) count(n int) int { return max(3, int(float64(n)*b.scale)) }

// size scales a number of bytes.
func (b *bench) size(n int64) int64 { return max(1<<20, int64(float64(n)*b.scale)) }

// sandbox creates a sandbox; the returned function deletes it.
func (b *bench) sandbox(ctx context.Context, id string) (func(), error) {
	return b.sandboxWith(ctx, id, nil)
}

func (b *bench) sandboxWith(ctx context.Context, id string, spec *sandboxv1.SandboxSpec) (func(), error) {
	return b.create(ctx, &sandboxv1.CreateSandboxRequest{SandboxId: id, Spec: spec})
}

func (b *bench) create(ctx context.Context, req *sandboxv1.CreateSandboxRequest) (func(), error) {
	if _, err := b.client.CreateSandbox(ctx, req); err != nil {
		return nil, err
	}
	id := req.GetSandboxId()
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
