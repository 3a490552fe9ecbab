package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"google.golang.org/grpc"

	"github.com/sandgate/sandgate/bench/report"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// listenCommand makes this program the listener of the forward rows.
const listenCommand = "listen"

// listenerPath is where this program is in a sandbox.
const listenerPath = "/workspace/bench-listener"

// block is what the listener and its client write at once.
var block = make([]byte, 256<<10)

// listen prints the ports of three listeners and serves until it is killed. A connection
// to the first gets bytes until it is closed. The second answers the end of its input with
// the number of bytes that came. The third is serveWeb.
func listen() error {
	source, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	sink, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	port := func(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }
	if _, err := fmt.Fprintln(os.Stdout, port(source), port(sink), port(web)); err != nil {
		return err
	}
	go func() { _ = http.Serve(web, http.HandlerFunc(serveWeb)) }()
	go serveConns(source, func(c net.Conn) {
		for {
			if _, err := c.Write(block); err != nil {
				return
			}
		}
	})
	serveConns(sink, func(c net.Conn) {
		var n int64
		for buf := make([]byte, len(block)); ; {
			k, err := c.Read(buf)
			n += int64(k)
			if err != nil {
				break
			}
		}
		_, _ = fmt.Fprint(c, n)
	})
	return nil
}

func serveConns(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			serve(c)
		}()
	}
}

// ports are those of one listener.
type ports struct{ source, sink, web int32 }

func scanPorts(line string) (p ports, err error) {
	if _, err = fmt.Sscan(line, &p.source, &p.sink, &p.web); err != nil {
		err = fmt.Errorf("the listener wrote %q: %w", line, err)
	}
	return p, err
}

// listenHere runs the listener on this machine, for the yardsticks.
func listenHere() (ports, func(), error) {
	line, stop, err := startSelf(listenCommand)
	if err != nil {
		return ports{}, nil, err
	}
	p, err := scanPorts(line)
	return p, stop, err
}

// startSelf runs this program with arguments. It returns the first line that it prints.
func startSelf(args ...string) (line string, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.Command(self, args...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() { _, _ = cmd.Process.Kill(), cmd.Wait() }
	if line, err = bufio.NewReader(out).ReadString('\n'); err != nil {
		stop()
		return "", nil, err
	}
	return line, stop, nil
}

// uploadSelf puts this program into a sandbox, at listenerPath.
func (b *bench) uploadSelf(ctx context.Context, sandbox string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	program, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	call, err := b.client.Upload(ctx)
	if err != nil {
		return err
	}
	mode := uint32(0o755)
	messages := []*sandboxv1.UploadRequest{{Payload: &sandboxv1.UploadRequest_Header{
		Header: &sandboxv1.UploadHeader{SandboxId: sandbox, Path: listenerPath, Mode: &mode}}}}
	for rest := program; len(rest) > 0; {
		n := min(len(rest), len(block))
		messages = append(messages, &sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Chunk{Chunk: rest[:n]}})
		rest = rest[n:]
	}
	messages = append(messages, &sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Trailer{Trailer: &sandboxv1.UploadTrailer{}}})
	for _, m := range messages {
		if err := call.Send(m); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	reply, err := call.CloseAndRecv()
	if err != nil {
		return err
	}
	if failed := reply.GetResults()[0].GetError(); failed != nil {
		return fmt.Errorf("upload this program: %v", failed)
	}
	return nil
}

// listenInside runs the listener in a sandbox until ctx ends.
func (b *bench) listenInside(ctx context.Context, sandbox string) (ports, error) {
	if err := b.uploadSelf(ctx, sandbox); err != nil {
		return ports{}, err
	}
	run, err := b.client.Execute(ctx, &sandboxv1.ExecuteRequest{SandboxId: sandbox,
		Command: &sandboxv1.ExecuteRequest_Argv{Argv: &sandboxv1.Argv{Args: []string{listenerPath, listenCommand}}}})
	if err != nil {
		return ports{}, err
	}
	for line := ""; ; {
		m, err := run.Recv()
		if err != nil {
			return ports{}, err
		}
		if line += string(m.GetOutput().GetData()); strings.Contains(line, "\n") {
			return scanPorts(line)
		}
		if e := m.GetExited(); e != nil {
			return ports{}, fmt.Errorf("the listener ended: %v", e)
		}
	}
}

// forwardFrom receives size bytes from a port.
func forwardFrom(ctx context.Context, c sandboxv1.SandboxServiceClient, sandbox string, port int32, size int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	call, err := openForward(ctx, c, sandbox, port)
	for err == nil && size > 0 {
		var m *sandboxv1.ForwardResponse
		m, err = call.Recv()
		size -= int64(len(m.GetData()))
	}
	return err
}

// forwardTo sends size bytes to a port and receives their number.
func forwardTo(ctx context.Context, c sandboxv1.SandboxServiceClient, sandbox string, port int32, size int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	call, err := openForward(ctx, c, sandbox, port)
	for left := size; err == nil && left > 0; left -= int64(len(block)) {
		err = call.Send(&sandboxv1.ForwardRequest{Payload: &sandboxv1.ForwardRequest_Data{Data: block[:min(left, int64(len(block)))]}})
	}
	if err == nil {
		err = call.Send(&sandboxv1.ForwardRequest{Payload: &sandboxv1.ForwardRequest_Eof{Eof: &sandboxv1.ForwardEof{}}})
	}
	if err != nil {
		return err
	}
	m, err := call.Recv()
	if got := string(m.GetData()); err == nil && got != fmt.Sprint(size) {
		err = fmt.Errorf("%s bytes came to the port, want %d", got, size)
	}
	return err
}

func openForward(ctx context.Context, c sandboxv1.SandboxServiceClient, sandbox string, port int32) (grpc.BidiStreamingClient[sandboxv1.ForwardRequest, sandboxv1.ForwardResponse], error) {
	call, err := c.Forward(ctx)
	if err != nil {
		return nil, err
	}
	if err := call.Send(&sandboxv1.ForwardRequest{Payload: &sandboxv1.ForwardRequest_Start{
		Start: &sandboxv1.ForwardStart{SandboxId: sandbox, Port: port}}}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	_, err = call.Recv()
	return call, err
}

// forwardThroughput compares bulk through Forward with a one-hop grpc-go stream to the
// same kind of listener, in both directions.
func forwardThroughput(ctx context.Context, b *bench) ([]report.Figure, error) {
	remove, err := b.sandbox(ctx, "bench-forward")
	if err != nil {
		return nil, err
	}
	defer remove()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	inside, err := b.listenInside(ctx, "bench-forward")
	if err != nil {
		return nil, err
	}
	here, stop, err := listenHere()
	if err != nil {
		return nil, err
	}
	defer stop()
	at := func(c sandboxv1.SandboxServiceClient) ports {
		if c == b.client {
			return inside
		}
		return here
	}
	size := b.size(1 << 30)
	from, err := compare(ctx, b, "forward from a port | one hop", size, report.AtLeast(0.5), report.AtLeast(0.8), func(c sandboxv1.SandboxServiceClient) error {
		return forwardFrom(ctx, c, "bench-forward", at(c).source, size)
	})
	if err != nil {
		return nil, err
	}
	to, err := compare(ctx, b, "forward to a port | one hop", size, report.AtLeast(0.5), report.AtLeast(0.8), func(c sandboxv1.SandboxServiceClient) error {
		return forwardTo(ctx, c, "bench-forward", at(c).sink, size)
	})
	return append(from, to...), err
}
