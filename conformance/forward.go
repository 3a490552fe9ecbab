package conformance

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// forwardCases are about connections to ports of the sandbox. The program that listens is
// conformance/goprogram.
var forwardCases = []SandboxCase{
	{Name: "C31_forward_echo_16MiB", run: forwardEcho},
	{Name: "C31_forward_program_ends_first", run: forwardProgramEndsFirst},
	{Name: "C31_forward_caller_ends_first", run: forwardCallerEndsFirst},
	{Name: "C31_forward_ipv6", run: forwardIPv6},
	{Name: "C31_forward_refused", run: forwardRefused},
	{Name: "C31_forward_reset", run: forwardReset},
	{Name: "C31_forward_cancel_resets", run: forwardCancel},
	{Name: "C31_forward_100_at_once", run: forwardMany},
	{Name: "C31_forward_program_reads_nothing", run: forwardUnread},
	{Name: "C31_forward_caller_reads_nothing", run: forwardUnreceived},
	{Name: "C31_forward_invalid", run: forwardInvalid},
}

// inFlight is more than what buffers on the way hold of one connection: two streams'
// windows of 1 MiB, and the kernel's socket buffers.
const inFlight = 32 << 20

// listening is a running conformance/goprogram.
type listening struct {
	Sandbox
	ports map[string]int32
	lines func() string // the next line of its output
}

// listen runs the program until the case ends.
func (s Sandbox) listen(ctx context.Context, t T) listening {
	t.Helper()
	if len(s.GoProgram) == 0 {
		t.Skipf("no static build of conformance/goprogram was given")
	}
	path := s.dir + "/listener"
	if r := s.upload(ctx, t, file{path, s.GoProgram})[0]; r.GetError() != nil {
		t.Fatalf("upload: %v", r)
	}
	if r := s.sh(ctx, t, "chmod +x "+path); r.code() != 0 {
		t.Fatalf("%v", r)
	}
	run, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	t.Cleanup(func() { stop(nil) })
	req := argv(path, "serve")
	req.SandboxId, req.Timeout = s.ID, nil
	stream, err := s.Client.Execute(run, req)
	if err != nil {
		t.Fatalf("run the listener: %v", err)
	}
	l := listening{Sandbox: s, ports: map[string]int32{}, lines: lines(t, stream)}
	for {
		line := l.lines()
		name, address, _ := strings.Cut(line, " ")
		if name == "ready" {
			t.Cleanup(func() {
				defer time.AfterFunc(endTime, func() { stop(nil) }).Stop()
				_ = s.execute(run, t, shell("kill -9 "+address)) // The sandbox may be gone.
				for err == nil {
					_, err = stream.Recv()
				}
			})
			return l
		}
		port, bad := strconv.Atoi(address[strings.LastIndex(address, ":")+1:])
		if bad != nil {
			t.Fatalf("the listener wrote %q", line)
		}
		l.ports[name] = int32(port)
	}
}

// lines returns a function that returns the next line of a command's output.
func lines(t T, stream grpc.ServerStreamingClient[sandboxv1.ExecuteResponse]) func() string {
	var rest string
	return func() string {
		t.Helper()
		for {
			if line, more, ok := strings.Cut(rest, "\n"); ok {
				rest = more
				return line
			}
			m, err := stream.Recv()
			if err != nil || m.GetExited() != nil {
				t.Fatalf("the listener ended: %v, %v; it wrote %q", m.GetExited(), err, rest)
			}
			rest += string(m.GetOutput().GetData())
		}
	}
}

// forwarded is an open connection.
type forwarded struct {
	stream grpc.BidiStreamingClient[sandboxv1.ForwardRequest, sandboxv1.ForwardResponse]
	opened *sandboxv1.ForwardOpened
}

// forward opens a connection, whose call ends with ctx.
func (s Sandbox) forward(ctx context.Context, start *sandboxv1.ForwardStart) (*forwarded, error) {
	stream, err := s.Client.Forward(ctx)
	if err != nil {
		return nil, err
	}
	start.SandboxId = s.ID
	if err := stream.Send(&sandboxv1.ForwardRequest{Payload: &sandboxv1.ForwardRequest_Start{Start: start}}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if first.GetOpened() == nil {
		return nil, fmt.Errorf("the first message is %v", first)
	}
	return &forwarded{stream, first.GetOpened()}, nil
}

// open is forward to a service of the listener, which must accept.
func (l listening) open(ctx context.Context, t T, service string) *forwarded {
	t.Helper()
	f, err := l.forward(ctx, &sandboxv1.ForwardStart{Port: l.ports[service]})
	if err != nil {
		t.Fatalf("connect to %s: %v", service, err)
	}
	return f
}

func (f *forwarded) send(data []byte) error {
	return f.stream.Send(&sandboxv1.ForwardRequest{Payload: &sandboxv1.ForwardRequest_Data{Data: data}})
}

func (f *forwarded) sendAll(data []byte) error {
	for len(data) > 0 {
		n := min(len(data), 32_000)
		if err := f.send(data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

func (f *forwarded) sendEOF() error {
	return f.stream.Send(&sandboxv1.ForwardRequest{Payload: &sandboxv1.ForwardRequest_Eof{Eof: &sandboxv1.ForwardEof{}}})
}

// receive returns all data up to eof.
func (f *forwarded) receive() ([]byte, error) {
	var got bytes.Buffer
	for {
		m, err := f.stream.Recv()
		switch {
		case err != nil:
			return got.Bytes(), fmt.Errorf("after %d bytes: %w", got.Len(), err)
		case m.GetEof() != nil:
			return got.Bytes(), nil
		case len(m.GetData()) == 0:
			return got.Bytes(), fmt.Errorf("after %d bytes: %v", got.Len(), m)
		}
		got.Write(m.GetData())
	}
}

// end receives the end of the call, which must be OK.
func (f *forwarded) end(t T) {
	t.Helper()
	if m, err := f.stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after both ends: %v, %v", m, err)
	}
}

// echo sends content, and returns an error unless it comes back.
func (f *forwarded) echo(content []byte) error {
	sent := make(chan error, 1)
	go func() { sent <- errors.Join(f.sendAll(content), f.sendEOF()) }()
	got, err := f.receive()
	if err = errors.Join(err, <-sent); err == nil && !bytes.Equal(got, content) {
		err = fmt.Errorf("%d bytes with hash %x came back for %d with %x", len(got), sha256.Sum256(got), len(content), sha256.Sum256(content))
	}
	return err
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // Read never fails: it ends the program instead.
	return b
}

func forwardEcho(ctx context.Context, t T, s Sandbox) {
	l := s.listen(ctx, t)
	f := l.open(ctx, t, "echo")
	if want := fmt.Sprintf("127.0.0.1:%d", l.ports["echo"]); f.opened.GetAddress() != want || f.opened.GetIncarnation() == "" {
		t.Errorf("opened %v, expected %s", f.opened, want)
	}
	if err := f.echo(random(16 << 20)); err != nil {
		t.Errorf("%v", err)
	}
	f.end(t)
}

func forwardProgramEndsFirst(ctx context.Context, t T, s Sandbox) {
	l := s.listen(ctx, t)
	f := l.open(ctx, t, "ends-first")
	if got, err := f.receive(); err != nil || string(got) != "bye" {
		t.Fatalf("%q, %v", got, err)
	}
	content := random(1 << 20)
	if err := errors.Join(f.sendAll(content), f.sendEOF()); err != nil {
		t.Fatalf("send after the program's end: %v", err)
	}
	f.end(t)
	if got, want := l.lines(), fmt.Sprintf("ends-first %d %x <nil>", len(content), sha256.Sum256(content)); got != want {
		t.Errorf("the program reports %q, expected %q", got, want)
	}
}

func forwardCallerEndsFirst(ctx context.Context, t T, s Sandbox) {
	l := s.listen(ctx, t)
	f := l.open(ctx, t, "watches")
	if err := errors.Join(f.sendAll(random(100_000)), f.sendEOF()); err != nil {
		t.Fatalf("%v", err)
	}
	if got, err := f.receive(); err != nil || len(got) != 0 {
		t.Errorf("%q, %v", got, err)
	}
	f.end(t)
	if got := l.lines(); got != "watches 100000 eof" {
		t.Errorf("the program reports %q", got)
	}
}

func forwardIPv6(ctx context.Context, t T, s Sandbox) {
	l := s.listen(ctx, t)
	port, ok := l.ports["echo6"]
	if !ok {
		t.Skipf("the sandbox has no IPv6")
	}
	for _, host := range []string{"", "localhost", "::1"} {
		f, err := l.forward(ctx, &sandboxv1.ForwardStart{Host: host, Port: port})
		if err != nil {
			t.Fatalf("host %q: %v", host, err)
		}
		if want := fmt.Sprintf("[::1]:%d", port); f.opened.GetAddress() != want {
			t.Errorf("opened %s, expected %s", f.opened.GetAddress(), want)
		}
		if err := f.echo([]byte("six")); err != nil {
			t.Errorf("%v", err)
		}
	}
	_, err := l.forward(ctx, &sandboxv1.ForwardStart{Host: "127.0.0.1", Port: port})
	wantReason(t, "127.0.0.1", err, "PORT_CLOSED")
}

func forwardRefused(ctx context.Context, t T, s Sandbox) {
	_, err := s.forward(ctx, &sandboxv1.ForwardStart{Port: 1})
	wantReason(t, "a port on which nothing listens", err, "PORT_CLOSED")
}

func forwardReset(ctx context.Context, t T, s Sandbox) {
	l := s.listen(ctx, t)
	f := l.open(ctx, t, "resets")
	if err := f.send([]byte("xy")); err != nil {
		t.Fatalf("%v", err)
	}
	_, err := f.receive()
	wantReason(t, "a reset", err, "CONNECTION_RESET")
}

// forwardCancel: a caller that goes away without eof is no end of input.
func forwardCancel(ctx context.Context, t T, s Sandbox) {
	l := s.listen(ctx, t)
	cancelled, cancel := context.WithCancelCause(ctx)
	f := l.open(cancelled, t, "watches")
	if err := f.send([]byte("x")); err != nil {
		t.Fatalf("%v", err)
	}
	cancel(nil)
	if got := l.lines(); got != "watches 0 reset" && got != "watches 1 reset" {
		t.Errorf("after a cancel the program reports %q", got)
	}
	f = l.open(ctx, t, "watches")
	if err := f.stream.CloseSend(); err != nil {
		t.Fatalf("%v", err)
	}
	_, err := f.receive()
	wantReason(t, "a stream that ends without eof", err, "CALL_CANCELLED")
	if got := l.lines(); got != "watches 0 reset" {
		t.Errorf("after a stream without eof the program reports %q", got)
	}
}

func forwardMany(ctx context.Context, t T, s Sandbox) {
	l := s.listen(ctx, t)
	const count = 100
	all := make([]*forwarded, count)
	for i := range all {
		all[i] = l.open(ctx, t, "echo")
	}
	errs := make([]error, count)
	var work sync.WaitGroup
	for i, f := range all {
		work.Go(func() { errs[i] = f.echo(random(64 << 10)) })
	}
	work.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Errorf("%v", err)
	}
}

// worksBeside wants another connection and a command to work.
func worksBeside(ctx context.Context, t T, s Sandbox, l listening) {
	t.Helper()
	if err := l.open(ctx, t, "echo").echo(random(1 << 20)); err != nil {
		t.Errorf("beside it: %v", err)
	}
	if r := s.sh(ctx, t, "echo beside"); r.stdout != "beside\n" {
		t.Errorf("beside it: %v", r)
	}
}

// forwardUnread: a program that reads nothing stops its caller, and nothing else.
func forwardUnread(ctx context.Context, t T, s Sandbox) {
	l := s.listen(ctx, t)
	cancelled, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f := l.open(cancelled, t, "reads-nothing")
	sent, ended := make(chan int, 1), make(chan int, 1)
	go func() {
		total := 0
		for data := make([]byte, 32_000); total <= inFlight && f.send(data) == nil; {
			total += len(data)
			select {
			case sent <- total:
			default:
			}
		}
		ended <- total
	}()
	<-sent // the connection carries data
	worksBeside(ctx, t, s, l)
	cancel(nil)
	if total := <-ended; total > inFlight {
		t.Errorf("%d bytes were accepted that nobody reads", total)
	}
}

// forwardUnreceived: a caller that receives nothing stops the program's connection, and
// nothing else.
func forwardUnreceived(ctx context.Context, t T, s Sandbox) {
	l := s.listen(ctx, t)
	cancelled, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l.open(cancelled, t, "writes-endlessly")
	worksBeside(ctx, t, s, l)
	cancel(nil)
	var total int
	if line := l.lines(); !scan(line, "writes-endlessly %d", &total) || total > inFlight {
		t.Errorf("the program reports %q", line)
	}
}

func scan(line, format string, into ...any) bool {
	n, err := fmt.Sscanf(line, format, into...)
	return err == nil && n == len(into)
}

// forwardInvalid: what is no port of the sandbox is refused before anything is dialled.
func forwardInvalid(ctx context.Context, t T, s Sandbox) {
	for _, start := range []*sandboxv1.ForwardStart{
		{}, {Port: -1}, {Port: 65_536},
		{Port: 80, Host: "10.0.0.1"}, {Port: 80, Host: "0.0.0.0"}, {Port: 80, Host: "::"}, {Port: 80, Host: "example.com"},
		{Port: 80, Host: "127.1"}, {Port: 80, Host: "::ffff:10.0.0.1"}, {Port: 80, Host: "169.254.169.254"}, {Port: 80, Host: "::1%lo"},
	} {
		_, err := s.forward(ctx, start)
		wantReason(t, fmt.Sprintf("%q port %d", start.GetHost(), start.GetPort()), err, "REQUEST_INVALID")
	}
}
