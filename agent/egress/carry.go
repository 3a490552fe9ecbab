package egress

import (
	"errors"
	"io"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/sandgate/sandgate/agent/fault"
	"github.com/sandgate/sandgate/agent/payload"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

type carryStream = grpc.BidiStreamingServer[agentv1.CarryEgressRequest, agentv1.CarryEgressResponse]

// CarryEgress carries the bytes of an announced connection until it ends.
func (s *Service) CarryEgress(stream carryStream) error {
	first, err := stream.Recv()
	if err != nil {
		return fault.CallEnded(stream.Context())
	}
	p := s.servers.take(first.GetConnectionId(), nil)
	if p == nil {
		return errUnknownConn()
	}
	m := &messages{stream: stream, ended: make(chan struct{})}
	conn := streaming.NewConn(m)
	p.answer <- answer{conn: conn}
	select {
	case <-conn.Done():
	case <-m.ended:
	case <-stream.Context().Done():
	case <-s.ctx.Done():
	}
	if conn.Complete() {
		return nil
	}
	return fault.New(codes.Canceled, sandboxv1.ErrorReason_ERROR_REASON_CALL_CANCELLED, "the connection was reset", nil)
}

// messages is the agent's end of a CarryEgress stream.
type messages struct {
	stream carryStream
	held   payload.Payload // what Receive returned last
	once   sync.Once
	ended  chan struct{} // closed by Reset
}

var (
	_ streaming.Messages = (*messages)(nil)

	errBrokenStream = errors.New("the server sent a message that was not expected")
)

func (m *messages) Send(data []byte) error {
	return m.stream.Send(&agentv1.CarryEgressResponse{Payload: &agentv1.CarryEgressResponse_Data{Data: data}})
}

func (m *messages) SendEOF() error {
	return m.stream.Send(&agentv1.CarryEgressResponse{Payload: &agentv1.CarryEgressResponse_Eof{Eof: &agentv1.EgressEof{}}})
}

func (m *messages) Receive() ([][]byte, error) {
	m.held.Release()
	r := incoming{CarryEgressRequest: &agentv1.CarryEgressRequest{}}
	if err := m.stream.RecvMsg(&r); err != nil {
		// The end of the stream is no regular end of the connection.
		return nil, errors.Join(net.ErrClosed, err)
	}
	if r.Size > 0 {
		m.held = r.Payload
		return m.held.Parts, nil
	}
	switch p := r.GetPayload().(type) {
	case *agentv1.CarryEgressRequest_Data:
		if len(p.Data) == 0 {
			return nil, nil
		}
		return [][]byte{p.Data}, nil
	case *agentv1.CarryEgressRequest_Eof:
		return nil, io.EOF
	}
	m.Reset()
	return nil, errBrokenStream
}

// incoming is a CarryEgressRequest whose data stays in the buffers that gRPC received.
type incoming struct {
	*agentv1.CarryEgressRequest
	payload.Payload
}

func (m *messages) Reset() { m.once.Do(func() { close(m.ended) }) }

// relay copies both ways until both directions have ended or one has failed.
// early is what was read from the program before.
func (s *Service) relay(program *net.TCPConn, early io.Reader, remote *streaming.Conn) {
	defer func() { _ = remote.Close() }()
	done := make(chan bool, 2)
	s.work.Go(func() {
		done <- copyOne(remote, early)
	})
	s.work.Go(func() {
		_, err := remote.WriteTo(program)
		done <- err == nil && program.CloseWrite() == nil
	})
	for range 2 {
		if !<-done {
			reset(program)
			_ = remote.Close()
		}
	}
}

// buffers hold the bytes on their way from a program to the server.
var buffers = sync.Pool{New: func() any { return new([streaming.MaxConnChunk]byte) }}

// copyOne copies what a program sends and passes its end on. It reports false if the
// direction has failed.
func copyOne(remote *streaming.Conn, from io.Reader) bool {
	buffer := buffers.Get().(*[streaming.MaxConnChunk]byte)
	defer buffers.Put(buffer)
	// Without WriteTo, which would allocate a buffer of its own.
	if _, err := io.CopyBuffer(remote, struct{ io.Reader }{from}, buffer[:]); err != nil {
		return false
	}
	return remote.CloseWrite() == nil
}
