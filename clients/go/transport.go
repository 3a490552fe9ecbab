package sandgate

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// unaryPatience bounds the repeats of a call that is safe to repeat.
const unaryPatience = 30 * time.Second

// unary adds credentials and a request id, repeats what is safe to repeat, and
// turns every failure into an *Error.
func (c *Client) unary(headers headers) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		ctx, id := headers.own(ctx)
		retry := c.retry(min(c.patience, unaryPatience))
		for {
			attempt, err := headers.authorized(ctx)
			if err != nil {
				return err
			}
			err = c.explain(invoke(attempt, method, req, reply, conn, opts...), id)
			if err == nil {
				return nil
			}
			if !repeatable(req) || !retry.again(ctx, err) {
				return err
			}
		}
	}
}

// stream adds credentials and a request id, and turns every failure into an
// *Error.
func (c *Client) stream(headers headers) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		ctx, id := headers.own(ctx)
		ctx, err := headers.authorized(ctx)
		if err != nil {
			return nil, err
		}
		stream, err := open(ctx, desc, conn, method, opts...)
		if err != nil {
			return nil, c.explain(err, id)
		}
		return &explained{ClientStream: stream, client: c, id: id}, nil
	}
}

// explained is a stream whose errors are *Error.
type explained struct {
	grpc.ClientStream
	client *Client
	id     string
}

func (s *explained) SendMsg(m any) error {
	return s.client.explain(s.ClientStream.SendMsg(m), s.id)
}

func (s *explained) RecvMsg(m any) error {
	return s.client.explain(s.ClientStream.RecvMsg(m), s.id)
}

// explain turns an error of gRPC into an *Error and notes whether the server
// was reached.
func (c *Client) explain(err error, id string) error {
	err = fromStatus(err, id)
	own := (*Error)(nil)
	if !errors.As(err, &own) {
		c.reached.Store(true)
		return err
	}
	switch {
	case own.Code == codes.Unavailable && own.Reason == "":
		if !strings.HasPrefix(own.Message, "the server at ") {
			hint := hints[hintOf(own.Message, c.tls, c.reached.Load())]
			own.Message = fmt.Sprintf("the server at %s cannot be reached: %s", c.address, lastPart(own.Message))
			if hint != "" {
				own.Message += "; " + hint
			}
		}
	case own.Reason != "":
		c.reached.Store(true)
	}
	return err
}

// lastPart shortens gRPC's nested descriptions to the innermost one.
func lastPart(message string) string {
	if i := strings.LastIndex(message, "desc = "); i >= 0 {
		message = message[i+len("desc = "):]
	}
	message = strings.Trim(message, `"`)
	return strings.TrimPrefix(message, "transport: Error while dialing: ")
}

// repeatable says whether a call has the same effect when it is made twice.
func repeatable(req any) bool {
	switch r := req.(type) {
	case *sandboxv1.GetServerInfoRequest, *sandboxv1.GetSandboxRequest, *sandboxv1.ListSandboxesRequest,
		*sandboxv1.UpdateSandboxRequest, *sandboxv1.SuspendSandboxRequest, *sandboxv1.ResumeSandboxRequest,
		*sandboxv1.GetPoolStatusRequest, *sandboxv1.ListProcessesRequest,
		*sandboxv1.WriteStdinRequest, *sandboxv1.ResizeTerminalRequest, *sandboxv1.GetUploadRequest,
		*sandboxv1.StatFileRequest, *sandboxv1.ListDirectoryRequest, *sandboxv1.ReadLinesRequest,
		*sandboxv1.SearchFilesRequest, *sandboxv1.GlobFilesRequest:
		return true
	case *sandboxv1.CreateSandboxRequest:
		return r.GetSandboxId() != ""
	case *sandboxv1.DeleteSandboxRequest:
		return r.GetAllowMissing()
	}
	return false
}

// retry counts down the patience for one broken call.
type retry struct {
	deadline time.Time
	delay    time.Duration
}

// retry starts a countdown. There is no patience with a server that never
// answered.
func (c *Client) retry(patience time.Duration) *retry {
	if !c.reached.Load() {
		patience = 0
	}
	return &retry{deadline: time.Now().Add(patience), delay: 50 * time.Millisecond}
}

// again waits before the next attempt. It returns false when there must not be
// one: the error will not go away by itself, the patience is used up, or ctx
// ended.
func (r *retry) again(ctx context.Context, err error) bool {
	own := (*Error)(nil)
	return errors.As(err, &own) && own.Code == codes.Unavailable && r.pause(ctx, err)
}

// pause is again for an error that is known to go away.
func (r *retry) pause(ctx context.Context, err error) bool {
	wait := r.delay
	if own := (*Error)(nil); errors.As(err, &own) {
		wait = max(wait, min(own.RetryAfter, 5*time.Second))
	}
	wait += time.Duration(mathrand.Int64N(int64(wait)/4 + 1))
	r.delay = min(2*r.delay, 2*time.Second)
	if time.Now().Add(wait).After(r.deadline) {
		return false
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// newID makes a random id for a call, command or upload.
func newID() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // Read never fails: it ends the program instead.
	return hex.EncodeToString(b[:])
}
