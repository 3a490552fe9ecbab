package network

import (
	"errors"
	"io"
	"net"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/sandgate/sandgate/agent/fault"
	"github.com/sandgate/sandgate/agent/payload"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// relay joins a stream to a connection.
type relay struct {
	s      *Service
	stream grpc.ServerStream
	conn   *net.TCPConn
	port   int32
}

// errNoEof ends a stream whose caller has gone without ending its direction.
var errNoEof = fault.New(codes.Canceled, sandboxv1.ErrorReason_ERROR_REASON_CALL_CANCELLED,
	"the caller's stream ended without eof", nil)

// run returns nil when both directions have ended. In any other case it resets the
// connection. Its goroutines may outlive it until gRPC has ended the stream.
func (r *relay) run() error {
	in, out := make(chan error, 1), make(chan error, 1)
	r.s.wg.Go(func() { in <- r.s.recovery.Report("forward", fault.Catch(r.receive)) })
	r.s.wg.Go(func() { out <- r.s.recovery.Report("forward", fault.Catch(r.send)) })
	err := r.wait(in, out)
	if err != nil {
		reset(r.conn)
	} else {
		_ = r.conn.Close()
	}
	return err
}

// wait returns when the call can end.
func (r *relay) wait(in, out <-chan error) error {
	var broken error
	for in != nil || out != nil {
		select {
		case err := <-in:
			if err != nil && !isBroken(err) {
				return err
			}
			// What the program sent before it closed the connection is still read.
			in, broken = nil, err
		case err := <-out:
			if err != nil {
				return r.toFault(err)
			}
			out = nil
		case <-r.stream.Context().Done():
			return fault.CallEnded(r.stream.Context())
		case <-r.s.stopped:
			return stoppingFault()
		}
	}
	if broken != nil {
		return r.toFault(broken)
	}
	return nil
}

func (r *relay) toFault(err error) error {
	if isBroken(err) {
		return resetFault(r.port, err)
	}
	return err
}

// isBroken reports whether the connection has ended in both directions. Mostly the
// program has reset it, but the kernel may have, too: for lack of memory, or because a
// privileged program told it to.
func isBroken(err error) bool {
	var errno unix.Errno
	return errors.As(err, &errno)
}

func stoppingFault() error {
	return fault.New(codes.FailedPrecondition, sandboxv1.ErrorReason_ERROR_REASON_SANDBOX_NOT_ACTIVE,
		"the sandbox is being stopped", nil)
}

// receive writes the caller's data to the connection. It returns nil after the caller
// has ended its direction. The server lets nothing follow.
func (r *relay) receive() error {
	for {
		msg := incoming{ForwardRequest: &sandboxv1.ForwardRequest{}}
		err := r.stream.RecvMsg(&msg)
		switch {
		case errors.Is(err, io.EOF):
			return errNoEof
		case err != nil:
			return err //nolint:wrapcheck // gRPC's own status
		case msg.GetEof() != nil:
			return ignoreClosed(r.conn.CloseWrite())
		}
		if err := r.take(&msg); err != nil {
			return err
		}
	}
}

func (r *relay) take(msg *incoming) error {
	data := msg.Payload
	if data.Size == 0 {
		if len(msg.GetData()) == 0 {
			return invalid("payload", "must be data or eof after start")
		}
		data = payload.Plain(msg.GetData())
	}
	defer data.Release()
	r.s.touch()
	parts := net.Buffers(data.Parts)
	_, err := parts.WriteTo(r.conn)
	return err //nolint:wrapcheck // toFault looks at the errno
}

// ignoreClosed is for an end that the program has forestalled by its own.
func ignoreClosed(err error) error {
	if errors.Is(err, unix.ENOTCONN) {
		return nil
	}
	return err
}

// send reads from the connection and sends it to the caller. It returns nil after the
// program has ended its direction.
func (r *relay) send() error {
	raw, err := r.conn.SyscallConn()
	if err != nil {
		return err //nolint:wrapcheck // toFault looks at the errno
	}
	size := smallRead
	for {
		b, err := read(raw, size)
		if err != nil {
			return err
		}
		if b == nil {
			return r.stream.SendMsg(&sandboxv1.ForwardResponse{Payload: &sandboxv1.ForwardResponse_Eof{Eof: &sandboxv1.ForwardEof{}}}) //nolint:wrapcheck // gRPC's own status
		}
		r.s.touch()
		size = nextRead(size, len(*b))
		if err := r.stream.SendMsg(&outgoing{data: b}); err != nil {
			return err //nolint:wrapcheck // gRPC's own status
		}
	}
}
