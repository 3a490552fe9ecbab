package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"google.golang.org/grpc"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// yardstickCommand makes this program serve the one-hop yardstick.
const yardstickCommand = "yardstick"

// oneHop is a plain grpc-go server with default options that does the same job:
// generated messages, one hop, no retention, no checks.
type oneHop struct {
	sandboxv1.UnimplementedSandboxServiceServer
	chunk int
	dir   string
}

func serveYardstick(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: yardstick ADDRESS CHUNK DIR")
	}
	chunk, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", args[0])
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	sandboxv1.RegisterSandboxServiceServer(s, &oneHop{chunk: chunk, dir: args[2]})
	return s.Serve(l)
}

// Execute streams what a command writes to a pipe.
func (s *oneHop) Execute(r *sandboxv1.ExecuteRequest, out grpc.ServerStreamingServer[sandboxv1.ExecuteResponse]) error {
	args := r.GetArgv().GetArgs()
	cmd := exec.CommandContext(out.Context(), args[0], args[1:]...)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	buf := make([]byte, s.chunk)
	var position int64
	for {
		n, err := pipe.Read(buf)
		if n > 0 {
			if err := out.Send(&sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Output{
				Output: &sandboxv1.Output{Stream: sandboxv1.Stream_STREAM_STDOUT, Position: position, Data: buf[:n]},
			}}); err != nil {
				return err
			}
			position += int64(n)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if err := cmd.Wait(); err != nil {
		return err
	}
	code := int32(0)
	return out.Send(&sandboxv1.ExecuteResponse{Event: &sandboxv1.ExecuteResponse_Exited{
		Exited: &sandboxv1.Exited{Reason: sandboxv1.ExitReason_EXIT_REASON_EXITED, ExitCode: &code},
	}})
}

// Upload writes one file and hashes it.
func (s *oneHop) Upload(in grpc.ClientStreamingServer[sandboxv1.UploadRequest, sandboxv1.UploadResponse]) error {
	first, err := in.Recv()
	if err != nil {
		return err
	}
	path := filepath.Join(s.dir, filepath.Base(first.GetHeader().GetPath()))
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	hash := sha256.New()
	var size int64
	for {
		m, err := in.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		hash.Write(m.GetChunk())
		n, err := f.Write(m.GetChunk())
		if err != nil {
			return err
		}
		size += int64(n)
	}
	return in.SendAndClose(&sandboxv1.UploadResponse{Results: []*sandboxv1.UploadResult{{Path: path, Size: size, Sha256: hash.Sum(nil)}}})
}

// Download reads one file and hashes it.
func (s *oneHop) Download(r *sandboxv1.DownloadRequest, out grpc.ServerStreamingServer[sandboxv1.DownloadResponse]) error {
	f, err := os.Open(filepath.Join(s.dir, filepath.Base(r.GetItems()[0].GetPath())))
	if err != nil {
		return err
	}
	defer f.Close()
	hash := sha256.New()
	buf := make([]byte, s.chunk)
	for {
		n, err := f.Read(buf)
		if n > 0 {
			hash.Write(buf[:n])
			if err := out.Send(&sandboxv1.DownloadResponse{Payload: &sandboxv1.DownloadResponse_Chunk{Chunk: buf[:n]}}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	return out.Send(&sandboxv1.DownloadResponse{Payload: &sandboxv1.DownloadResponse_Trailer{
		Trailer: &sandboxv1.DownloadTrailer{Sha256: hash.Sum(nil)},
	}})
}

// yardstickChunks are the two sizes that fit grpc-go's buffer pools; the better result
// counts.
var yardstickChunks = []int{32_000, 256 << 10}

// yardsticks starts one process per chunk size and returns clients to them.
func yardsticks(ctx context.Context, dir string) ([]sandboxv1.SandboxServiceClient, func(), error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	var stops []func()
	stop := func() {
		for _, f := range stops {
			f()
		}
	}
	var clients []sandboxv1.SandboxServiceClient
	for _, chunk := range yardstickChunks {
		address, err := freeAddress()
		if err != nil {
			stop()
			return nil, nil, err
		}
		cmd := exec.Command(self, yardstickCommand, address, strconv.Itoa(chunk), dir)
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			stop()
			return nil, nil, err
		}
		stops = append(stops, func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
		conn, err := dial(address)
		if err != nil {
			stop()
			return nil, nil, err
		}
		stops = append(stops, func() { _ = conn.Close() })
		client := sandboxv1.NewSandboxServiceClient(conn)
		ready, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("the yardstick did not answer in 10 s"))
		_, err = client.Execute(ready, trueRequest(), grpc.WaitForReady(true))
		cancel()
		if err != nil {
			stop()
			return nil, nil, fmt.Errorf("waiting for the yardstick: %w", err)
		}
		clients = append(clients, client)
	}
	return clients, stop, nil
}

func trueRequest() *sandboxv1.ExecuteRequest {
	return &sandboxv1.ExecuteRequest{Command: &sandboxv1.ExecuteRequest_Argv{Argv: &sandboxv1.Argv{Args: []string{"true"}}}}
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

// Forward joins a stream to a port of this machine.
func (s *oneHop) Forward(call grpc.BidiStreamingServer[sandboxv1.ForwardRequest, sandboxv1.ForwardResponse]) error {
	first, err := call.Recv()
	if err != nil {
		return err
	}
	raw, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(first.GetStart().GetPort()))))
	if err != nil {
		return err
	}
	defer raw.Close()
	conn := raw.(*net.TCPConn)
	if err := call.Send(&sandboxv1.ForwardResponse{Payload: &sandboxv1.ForwardResponse_Opened{Opened: &sandboxv1.ForwardOpened{}}}); err != nil {
		return err
	}
	go func() {
		for {
			m, err := call.Recv()
			if err != nil {
				return
			}
			if m.GetEof() != nil {
				_ = conn.CloseWrite()
				return
			}
			if _, err := conn.Write(m.GetData()); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, s.chunk)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if err := call.Send(&sandboxv1.ForwardResponse{Payload: &sandboxv1.ForwardResponse_Data{Data: buf[:n]}}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return call.Send(&sandboxv1.ForwardResponse{Payload: &sandboxv1.ForwardResponse_Eof{Eof: &sandboxv1.ForwardEof{}}})
		}
		if err != nil {
			return err
		}
	}
}
