package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/sandgate/sandgate/agent/fault"
	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/streaming"
)

// refusal is why the server does not carry a connection.
type refusal struct {
	reason  agentv1.EgressRefusalReason
	message string
}

// Error returns the server's line for people.
func (r *refusal) Error() string { return r.message }

// errNoServer is returned while no server carries connections.
var errNoServer = errors.New("no server carries connections of this sandbox now")

// errWrongAnswer is returned when the server answers another kind of request.
var errWrongAnswer = errors.New("the server gave an answer that does not fit")

// errUnknownConn is the server's answer to a connection whose program has given up.
func errUnknownConn() error {
	return fault.New(codes.Canceled, sandboxv1.ErrorReason_ERROR_REASON_CALL_CANCELLED, "the program has closed the connection", nil)
}

// servers are the attached servers: those with an AcceptEgress stream.
type servers struct {
	wait     time.Duration // for a server
	dialTime time.Duration // for its answer to a connection

	mu       sync.Mutex
	attached []*server // the last one takes new connections
	waiting  chan struct{}
	nextID   uint64
	pending  map[uint64]*pending
}

// server is one AcceptEgress stream.
type server struct {
	mu     sync.Mutex // of Send
	stream grpc.BidiStreamingServer[agentv1.AcceptEgressRequest, agentv1.AcceptEgressResponse]
}

// pending is a request to a server without an answer. One value is sent.
type pending struct {
	server *server
	answer chan answer
}

type answer struct {
	ports []uint32        // of a question
	conn  *streaming.Conn // of a connection
	err   error
}

func (v *server) send(m *agentv1.AcceptEgressResponse) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.stream.Send(m)
}

// AcceptEgress announces the connections of programs to a server until the stream
// ends.
func (s *Service) AcceptEgress(stream grpc.BidiStreamingServer[agentv1.AcceptEgressRequest, agentv1.AcceptEgressResponse]) error {
	if !s.cfg.Enabled {
		return fault.New(codes.Unimplemented, sandboxv1.ErrorReason_ERROR_REASON_FEATURE_UNSUPPORTED,
			"the sandbox was not created with the network mode PROXY", map[string]string{"feature": "network_proxy"})
	}
	v := &server{stream: stream}
	defer s.servers.detach(v)
	if err := s.greet(v); err != nil {
		return fault.CallEnded(stream.Context())
	}
	received := make(chan struct{})
	go func() {
		defer close(received)
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			if addresses := m.GetAddresses(); addresses != nil {
				s.addresses.set(rangesOf(addresses))
				_ = v.send(&agentv1.AcceptEgressResponse{Message: &agentv1.AcceptEgressResponse_Listening{
					Listening: &agentv1.EgressListening{Id: addresses.GetId()},
				}})
				continue
			}
			s.servers.answered(v, m)
		}
	}()
	select {
	case <-received:
	case <-stream.Context().Done():
	case <-s.ctx.Done():
	}
	return nil
}

// greet has a server take all new connections, which the first message reports.
func (s *Service) greet(v *server) error {
	v.mu.Lock() // so that no announcement comes before it
	defer v.mu.Unlock()
	s.servers.attach(v)
	s.upstreams.renew()
	return v.stream.Send(&agentv1.AcceptEgressResponse{Message: &agentv1.AcceptEgressResponse_Listening{Listening: &agentv1.EgressListening{}}})
}

func (v *servers) attach(one *server) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.attached = append(v.attached, one)
	if v.waiting != nil {
		close(v.waiting)
		v.waiting = nil
	}
}

func (v *servers) detach(gone *server) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i, one := range v.attached {
		if one == gone {
			v.attached = append(v.attached[:i:i], v.attached[i+1:]...)
			break
		}
	}
	for id, p := range v.pending {
		if p.server == gone {
			delete(v.pending, id)
			p.answer <- answer{err: errNoServer}
		}
	}
}

// current returns the server that takes new requests. It waits for one.
func (v *servers) current(ctx context.Context) (*server, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, v.wait, errNoServer)
	defer cancel()
	for {
		v.mu.Lock()
		if n := len(v.attached); n > 0 {
			defer v.mu.Unlock()
			return v.attached[n-1], nil
		}
		if v.waiting == nil {
			v.waiting = make(chan struct{})
		}
		waiting := v.waiting
		v.mu.Unlock()
		select {
		case <-waiting:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// request sends a request and waits for its answer. fill puts the id into it.
func (v *servers) request(ctx context.Context, fill func(id uint64) *agentv1.AcceptEgressResponse) answer {
	one, err := v.current(ctx)
	if err != nil {
		return answer{err: err}
	}
	p := &pending{server: one, answer: make(chan answer, 1)}
	v.mu.Lock()
	v.nextID++
	id := v.nextID
	v.pending[id] = p
	v.mu.Unlock()
	if err := one.send(fill(id)); err != nil {
		v.take(id, nil)
		return answer{err: errors.Join(errNoServer, err)}
	}
	select {
	case a := <-p.answer:
		return a
	case <-one.stream.Context().Done():
		// detach answers, unless it came before the request.
		v.take(id, nil)
		return answer{err: errNoServer}
	case <-ctx.Done():
	}
	if v.take(id, nil) == nil {
		// The answer is on its way.
		if a := <-p.answer; a.conn != nil {
			_ = a.conn.Close()
		}
	}
	return answer{err: context.Cause(ctx)}
}

// take returns the pending request of this id, and removes it. from, unless nil, is
// the server that must have received it.
func (v *servers) take(id uint64, from *server) *pending {
	v.mu.Lock()
	defer v.mu.Unlock()
	p := v.pending[id]
	if p == nil || from != nil && p.server != from {
		return nil
	}
	delete(v.pending, id)
	return p
}

// answered handles a server's answer.
func (v *servers) answered(from *server, m *agentv1.AcceptEgressRequest) {
	switch m := m.GetMessage().(type) {
	case *agentv1.AcceptEgressRequest_Answer:
		if p := v.take(m.Answer.GetId(), from); p != nil {
			p.answer <- answer{ports: m.Answer.GetPorts()}
		}
	case *agentv1.AcceptEgressRequest_Refusal:
		if p := v.take(m.Refusal.GetId(), from); p != nil {
			p.answer <- answer{err: &refusal{reason: m.Refusal.GetReason(), message: m.Refusal.GetMessage()}}
		}
	}
}

// ports asks the server at which ports a name is allowed.
func (s *Service) ports(ctx context.Context, host string) ([]uint32, error) {
	a := s.servers.request(ctx, func(id uint64) *agentv1.AcceptEgressResponse {
		return &agentv1.AcceptEgressResponse{Message: &agentv1.AcceptEgressResponse_Question{
			Question: &agentv1.EgressQuestion{Id: id, Host: host},
		}}
	})
	if a.conn != nil {
		_ = a.conn.Close()
		return nil, errWrongAnswer
	}
	return a.ports, a.err
}

// dial connects to a destination through the server. The error is a *refusal if
// the server refuses.
func (s *Service) dial(ctx context.Context, host string, port uint16) (*streaming.Conn, error) {
	conn, err := s.announce(ctx, host, port)
	if err != nil && ctx.Err() == nil { // not that the program has given up
		s.refused.add(net.JoinHostPort(host, strconv.Itoa(int(port))), err.Error())
	}
	return conn, err
}

// announce announces a connection and waits for the server.
func (s *Service) announce(ctx context.Context, host string, port uint16) (*streaming.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.servers.dialTime, fmt.Errorf("%s did not answer within %s", host, s.servers.dialTime))
	defer cancel()
	a := s.servers.request(ctx, func(id uint64) *agentv1.AcceptEgressResponse {
		return &agentv1.AcceptEgressResponse{Message: &agentv1.AcceptEgressResponse_Connection{
			Connection: &agentv1.EgressConnection{Id: id, Host: host, Port: uint32(port)},
		}}
	})
	if a.err == nil && a.conn == nil {
		return nil, errWrongAnswer
	}
	return a.conn, a.err
}
