package carrier

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"

	agentv1 "github.com/sandgate/sandgate/gen/sandbox/agent/v1"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/egress"
	"github.com/sandgate/sandgate/server/fault"
	"github.com/sandgate/sandgate/streaming"
)

const (
	// maxCarried is the largest message of a connection, in bytes.
	maxCarried = streaming.MaxConnChunk + 1<<10
	// lastAnswerTime is how long a program may take to end its direction after the
	// last answer on a connection, such as why it is denied.
	lastAnswerTime = 10 * time.Second
)

// errNotTaken ends a connection whose stream the agent does not take.
var errNotTaken = errors.New("the agent did not take the connection that it announced")

// announcer answers the requests of one AcceptEgress stream.
type announcer struct {
	holder *holder
	agent  *agentconn.Conn
	// listening has the agent's last answer to EgressAddresses.
	listening chan uint64

	// The holder's routing guards these.
	noRoutes    bool // the agent or the runtime has none
	addressesID uint64
	listensAt   *[]egress.AddressRange // nil: nothing was sent yet, or it failed

	mu     sync.Mutex // of Send
	stream grpc.BidiStreamingClient[agentv1.AcceptEgressRequest, agentv1.AcceptEgressResponse]
}

func (a *announcer) send(m *agentv1.AcceptEgressRequest) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stream.Send(m)
}

// answer answers whether a name is allowed.
func (a *announcer) answer(q *agentv1.EgressQuestion) error {
	answer := &agentv1.EgressAnswer{Id: q.GetId()}
	for _, port := range a.holder.current().Ports(q.GetHost()) {
		answer.Ports = append(answer.Ports, uint32(port))
	}
	if len(answer.GetPorts()) == 0 {
		// Of an address there is nothing to ask, and nothing is denied.
		if err := a.deniedName(q.GetHost()); err != nil {
			a.holder.report(Ended{Target: fault.Bounded(q.GetHost()), Err: err})
		}
	}
	return a.send(&agentv1.AcceptEgressRequest{Message: &agentv1.AcceptEgressRequest_Answer{Answer: answer}})
}

// deniedName returns the denial of a name that no rule allows at any port.
func (a *announcer) deniedName(host string) error {
	target, err := egress.ParseTarget(host, 443)
	if err == nil {
		err = a.holder.current().Check(target)
	}
	return err
}

// announced opens an announced connection, if the rules allow it, and carries it.
func (a *announcer) announced(ctx context.Context, carried *sync.WaitGroup, c *agentv1.EgressConnection) error {
	begun := time.Now()
	e := Ended{Target: net.JoinHostPort(fault.Bounded(c.GetHost()), strconv.FormatUint(uint64(c.GetPort()), 10))}
	target, err := egress.ParseTarget(c.GetHost(), c.GetPort())
	if err == nil {
		e.Target = target.String()
		if err = a.holder.current().Check(target); err == nil {
			err = a.holder.take()
		}
	}
	if err != nil {
		e.Err = err
		a.holder.report(e)
		return a.refuse(c, err)
	}
	carried.Go(func() {
		e.Err = fault.Catch(func() error { return a.carry(ctx, c, target, &e) })
		e.Duration = time.Since(begun)
		// First: who learns of the end may take the place.
		a.holder.release()
		a.holder.report(e)
	})
	return nil
}

// refuse answers a connection that is not carried.
func (a *announcer) refuse(c *agentv1.EgressConnection, err error) error {
	refusal := &agentv1.EgressRefusal{Id: c.GetId(), Reason: agentv1.EgressRefusalReason_EGRESS_REFUSAL_REASON_UNREACHABLE}
	var denied *egress.Denied
	switch {
	case errors.As(err, &denied):
		refusal.Reason, refusal.Message = agentv1.EgressRefusalReason_EGRESS_REFUSAL_REASON_DENIED, denied.Error()
	case errors.Is(err, ErrLimit), errors.Is(err, ErrSharedLimit):
		refusal.Reason, refusal.Message = agentv1.EgressRefusalReason_EGRESS_REFUSAL_REASON_LIMIT, err.Error()
	default:
		// The text of an ordinary error may name the server's network.
		refusal.Message = "the destination could not be reached"
	}
	return a.send(&agentv1.AcceptEgressRequest{Message: &agentv1.AcceptEgressRequest_Refusal{Refusal: refusal}})
}

// carry opens a connection and carries it until it ends.
func (a *announcer) carry(ctx context.Context, c *agentv1.EgressConnection, target egress.Target, e *Ended) error {
	upstream, err := a.holder.carrier.cfg.Dialer.Open(ctx, a.holder.current(), target)
	if err == nil {
		defer func() { _ = upstream.Close() }()
		if err = a.holder.add(upstream); err == nil {
			defer a.holder.remove(upstream)
		}
	}
	if err != nil {
		_ = a.refuse(c, err) // A broken stream ends the holder's loop as well.
		return err
	}
	e.Addr = upstream.Addr().String()
	defer func() { e.Sent, e.Received = upstream.Traffic() }()
	cfg := &a.holder.carrier.cfg
	cfg.OnOpen()
	upstream.Pace(a.holder.bytes)
	upstream.Intercept(func() (*egress.Authority, error) { return cfg.Authority(a.holder.key, a.agent.Incarnation) }, cfg.Secrets(a.holder.key.Tenant))

	ctx, cancelCause := context.WithCancelCause(ctx)
	cancel := func() { cancelCause(nil) }
	defer cancel()
	// An agent may permit no further stream, and the upstream's connection waits for it.
	late := time.AfterFunc(a.holder.carrier.taking, func() { cancelCause(errNotTaken) })
	stream, err := a.agent.Agent.CarryEgress(ctx, grpc.MaxCallRecvMsgSize(maxCarried))
	if !late.Stop() && err == nil {
		err = errNotTaken
	}
	if err != nil {
		return a.agent.Error(ctx, err)
	}
	first := &agentv1.CarryEgressRequest{Payload: &agentv1.CarryEgressRequest_ConnectionId{ConnectionId: c.GetId()}}
	if err := stream.Send(first); err != nil {
		return a.agent.Error(ctx, err)
	}
	client := streaming.NewConn(&messages{stream: stream, cancel: cancel})
	defer func() { _ = client.Close() }()
	err = upstream.Relay(ctx, client)
	var denied *egress.Denied
	if err == nil || errors.As(err, &denied) {
		finish(stream, client, upstream.Idle(), cancel)
	}
	return err
}

// finish ends a relayed connection in order, and resets it when that takes longer than
// a connection may be idle: an agent, or a program that does not read, must not hold
// its place for ever.
func finish(stream grpc.BidiStreamingClient[agentv1.CarryEgressRequest, agentv1.CarryEgressResponse], client *streaming.Conn, idle time.Duration, cancel func()) {
	idled := time.AfterFunc(idle, cancel)
	defer idled.Stop()
	if client.CloseWrite() != nil {
		return
	}
	if !client.Complete() {
		// An HTTP response, or the answer to a denied connection, was the last. The
		// program may still send.
		late := time.AfterFunc(lastAnswerTime, cancel)
		defer late.Stop()
		_, _ = io.Copy(io.Discard, client)
	}
	// Until the agent ends the stream, it may hold bytes that the program has not
	// read.
	_ = stream.CloseSend()
	_, _ = stream.Recv()
}

// messages is the server's end of a CarryEgress stream.
type messages struct {
	stream grpc.BidiStreamingClient[agentv1.CarryEgressRequest, agentv1.CarryEgressResponse]
	held   agentconn.Frame // what Receive returned last
	cancel context.CancelFunc
}

var _ streaming.Messages = (*messages)(nil)

func (m *messages) Send(data []byte) error {
	return m.sent(m.stream.Send(&agentv1.CarryEgressRequest{Payload: &agentv1.CarryEgressRequest_Data{Data: data}}))
}

func (m *messages) SendEOF() error {
	return m.sent(m.stream.Send(&agentv1.CarryEgressRequest{Payload: &agentv1.CarryEgressRequest_Eof{Eof: &agentv1.EgressEof{}}}))
}

// sent returns the error of a Send. io.EOF says that the agent has ended the stream.
func (*messages) sent(err error) error {
	if errors.Is(err, io.EOF) {
		return net.ErrClosed
	}
	return err
}

func (m *messages) Receive() ([][]byte, error) {
	m.held.Free()
	err := m.stream.RecvMsg(&m.held)
	switch {
	case errors.Is(err, io.EOF):
		return nil, net.ErrClosed // The program's end is a message.
	case err != nil:
		return nil, err
	}
	data, err := m.held.Relayed()
	if err != nil {
		return nil, fault.Misbehaved("%w", err)
	}
	parts := data.Parts()
	if len(parts) == 0 {
		return nil, io.EOF
	}
	return parts, nil
}

func (m *messages) Reset() { m.cancel() }
