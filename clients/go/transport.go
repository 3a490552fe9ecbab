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

// unaryRetryWindow bounds the retries of an idempotent unary call.
const unaryRetryWindow = 30 * time.Second

// maxRequestedWait bounds the wait before a retry that a server can request.
const maxRequestedWait = 5 * time.Second

// unary adds credentials and a request id, retries idempotent calls, and returns
// every failure as an *Error.
func (c *Client) unary(headers headers) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		ctx, id := headers.outgoing(ctx)
		retry := c.retry(min(c.retryWindow, unaryRetryWindow))
		for {
			attempt, token, err := headers.authorized(ctx)
			if err != nil {
				return err
			}
			err = c.toError(invoke(attempt, method, req, reply, conn, opts...), id)
			if err == nil {
				return nil
			}
			err = headers.rejected(ctx, token, err)
			if !idempotent(req) && !notBegun(err) || !retry.again(ctx, err) {
				return err
			}
		}
	}
}

// stream adds credentials and a request id, and returns every failure as an *Error.
func (c *Client) stream(headers headers) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		ctx, id := headers.outgoing(ctx)
		ctx, token, err := headers.authorized(ctx)
		if err != nil {
			return nil, err
		}
		stream, err := open(ctx, desc, conn, method, opts...)
		if err != nil {
			return nil, c.toError(err, id)
		}
		return &errorStream{ClientStream: stream, client: c, id: id, headers: headers, token: token}, nil
	}
}

// errorStream is a stream whose errors are *Error.
type errorStream struct {
	grpc.ClientStream
	client  *Client
	id      string
	headers headers
	token   string // that the stream was opened with
}

func (s *errorStream) SendMsg(m any) error {
	return s.client.toError(s.ClientStream.SendMsg(m), s.id)
}

func (s *errorStream) RecvMsg(m any) error {
	err := s.client.toError(s.ClientStream.RecvMsg(m), s.id)
	return s.headers.rejected(s.Context(), s.token, err)
}

// toError converts an error of gRPC to an *Error and records whether the server was
// reached.
func (c *Client) toError(err error, id string) error {
	err = fromStatus(err, id)
	if broken(err) && c.isClosed() {
		return closedError()
	}
	e := (*Error)(nil)
	if !errors.As(err, &e) {
		c.reached.Store(true)
		return err
	}
	switch {
	case e.Code == codes.Unavailable && e.Reason == "":
		if !strings.HasPrefix(e.Message, "the server at ") {
			hint := hints[hintOf(e.Message, c.tls, c.reached.Load())]
			e.Message = fmt.Sprintf("the server at %s cannot be reached: %s", c.address, lastPart(e.Message))
			if hint != "" {
				e.Message += "; " + hint
			}
		}
	case e.Reason != "":
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

// idempotent reports whether a call has the same effect when it is made twice.
func idempotent(req any) bool {
	switch r := req.(type) {
	case *sandboxv1.GetServerInfoRequest, *sandboxv1.GetSandboxRequest, *sandboxv1.ListSandboxesRequest,
		*sandboxv1.UpdateSandboxRequest, *sandboxv1.SuspendSandboxRequest, *sandboxv1.ResumeSandboxRequest,
		*sandboxv1.GetPoolStatusRequest, *sandboxv1.ListProcessesRequest,
		*sandboxv1.WriteStdinRequest, *sandboxv1.ResizeTerminalRequest, *sandboxv1.GetUploadRequest,
		*sandboxv1.StatFileRequest, *sandboxv1.ListDirectoryRequest, *sandboxv1.ReadLinesRequest,
		*sandboxv1.SearchFilesRequest, *sandboxv1.GlobFilesRequest, *sandboxv1.CreateSandboxUrlRequest:
		return true
	case *sandboxv1.CreateSandboxRequest:
		return r.GetSandboxId() != ""
	case *sandboxv1.DeleteSandboxRequest:
		return r.GetAllowMissing()
	case *sandboxv1.WriteFileRequest:
		return !r.GetCreateOnly()
	}
	return false
}

// retry is the retry window and the backoff of one broken call.
type retry struct {
	client *Client
	window time.Duration
	since  time.Time // of the first failure; zero before it
	delay  time.Duration
	// renewed is true after an attempt with another token.
	renewed bool
}

// retry returns a retry window, which begins with the first failure. It is empty until
// the server has answered a call: a wrong address is more likely than a restart.
func (c *Client) retry(window time.Duration) *retry {
	return &retry{client: c, window: window, delay: 50 * time.Millisecond}
}

// next returns how long to wait before the next attempt, or false if the retry window
// ends before it.
func (r *retry) next(now time.Time, err error) (time.Duration, bool) {
	if r.since.IsZero() {
		r.since = now
	}
	wait := r.delay
	if e := (*Error)(nil); errors.As(err, &e) {
		wait = max(wait, min(e.RetryAfter, maxRequestedWait))
	}
	wait += time.Duration(mathrand.Int64N(int64(wait)/4 + 1))
	r.delay = min(2*r.delay, 2*time.Second)
	return wait, r.client.reached.Load() && now.Add(wait).Sub(r.since) <= r.window
}

// again waits for the backoff before the next attempt. It returns false if there must
// not be one: the error is permanent, the retry window is over, or ctx ended. A rejected
// token that has changed since allows one attempt, at once. So does a client that was
// closed: that attempt fails with the error of a closed client.
func (r *retry) again(ctx context.Context, err error) bool {
	if e := (*Error)(nil); errors.As(err, &e) && e.tokenChanged && !r.renewed {
		r.renewed = true
		return ctx.Err() == nil
	}
	return broken(err) && r.pause(ctx, err)
}

// reattach is again for the stream of a command. A reader that was dropped for being slow
// reattaches at once.
func (r *retry) reattach(ctx context.Context, err error) bool {
	return errors.Is(err, Reason("READER_TOO_SLOW")) || r.again(ctx, err)
}

// notBegun reports whether the server rejected a call before it did anything.
func notBegun(err error) bool {
	e := (*Error)(nil)
	return errors.As(err, &e) && e.tokenChanged && e.Metadata["outcome"] != "unknown"
}

// broken reports whether an error is about the connection, not the call: the server
// cannot be reached, or something on the path reset the stream. A proxy that gives up
// on a silent stream resets it with INTERNAL or CANCELLED, without a reason of the
// server. clients/retries.json has the cases of all clients.
func broken(err error) bool {
	e := (*Error)(nil)
	if !errors.As(err, &e) {
		return false
	}
	return e.Code == codes.Unavailable || e.Reason == "" && (e.Code == codes.Internal || e.Code == codes.Canceled)
}

// pause is again for an error that is known to be transient.
func (r *retry) pause(ctx context.Context, err error) bool {
	wait, ok := r.next(time.Now(), err)
	if !ok {
		return false
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-r.client.closed:
		return true
	case <-timer.C:
		return true
	}
}

// newID returns a random id for a call, command or upload.
func newID() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // Read never fails.
	return hex.EncodeToString(b[:])
}
