package server

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/streaming"
)

// firstMessages returns, as gRPC frames them, the first messages of the calls on which a
// caller sends many, to a sandbox "a" that it creates.
func firstMessages(t *testing.T, addr string) map[string][]byte {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := sandboxv1.NewSandboxServiceClient(conn).CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "a"}); err != nil {
		t.Fatal(err)
	}
	all := make(map[string][]byte)
	for method, m := range map[string]proto.Message{
		"Upload": header(&sandboxv1.UploadHeader{SandboxId: "a", Path: "/x"}), "Forward": startA,
	} {
		raw, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		all[method] = grpcMessage(raw, len(raw))
	}
	return all
}

// Reflection has no slots, so its messages are small.
func TestReflectionTakesSmallMessages(t *testing.T) {
	h := newHarness(t, nil)
	for size, want := range map[int]string{1 << 10: "", 8 << 10: "MESSAGE_TOO_LARGE"} {
		stream, err := reflectionv1.NewServerReflectionClient(h.conn).ServerReflectionInfo(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&reflectionv1.ServerReflectionRequest{
			MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: strings.Repeat("x", size)},
		}); err != nil {
			t.Fatal(err)
		}
		answer, err := stream.Recv()
		if want != "" {
			wantReason(t, err, want)
		} else if err != nil || answer.GetErrorResponse() == nil {
			t.Errorf("%v, %v", answer, err)
		}
	}
}

// A message that is too large ends its call by its length. The caller can send no more of
// it than the window of a stream, which is open already. This also fails if gRPC's stream no
// longer has the methods that read messages.
func TestMessageOfAStreamIsRejectedByItsLength(t *testing.T) {
	addr, _ := tcpHarness(t, func(c *Config) { c.Authenticator = nil })
	for method, first := range firstMessages(t, addr) {
		end := make(chan struct{})
		body := &counted{Reader: io.MultiReader(&prefix{first}, newHalfMessage(16<<20, 12<<20, func() {}, end))}
		resp := postUntilAnswered(t, addr, method, body, end)
		code, message := resp.Trailer.Get("Grpc-Status")+resp.Header.Get("Grpc-Status"), resp.Trailer.Get("Grpc-Message")+resp.Header.Get("Grpc-Message")
		if code != "8" || !strings.Contains(message, fmt.Sprintf("larger than %d bytes", streaming.LargeChunk)) {
			t.Errorf("%s: status %q, %q", method, code, message)
		}
		const buffered = 512 << 10 // by the client
		if body.n > agentconn.StreamWindow+buffered {
			t.Errorf("%s: the caller sent %d KiB", method, body.n>>10)
		}
	}
}

// counted counts what is read.
type counted struct {
	io.Reader
	n int
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += n
	return n, err
}

// However a stream ends within a message or between two, the call ends with the reason.
func TestStreamThatEndsWithinAMessage(t *testing.T) {
	records := make(auditList, 64)
	addr, _ := tcpHarness(t, func(c *Config) { c.Authenticator, c.Audit = nil, records })
	half := grpcMessage(make([]byte, 10), 1000)
	for method, first := range firstMessages(t, addr) {
		between := map[string]string{"Upload": "", "Forward": "CALL_CANCELLED"}[method]
		for what, c := range map[string]struct {
			data   []byte
			end    func(*rawConn, uint32)
			reason string
		}{
			"ended between messages":        {nil, halfClose, between},
			"ended within a head":           {half[:3], halfClose, "REQUEST_INVALID"},
			"ended after a head":            {half[:5], halfClose, "REQUEST_INVALID"},
			"ended within a message":        {half, halfClose, "REQUEST_INVALID"},
			"reset within a message":        {half, resetStream, "CALL_CANCELLED"},
			"reset within a head":           {half[:3], resetStream, "CALL_CANCELLED"},
			"a connection cut in a message": {half, func(c *rawConn, _ uint32) { _ = c.conn.Close() }, "CALL_CANCELLED"},
			"marked as compressed":          {append([]byte{1}, half[1:]...), nil, "REQUEST_INVALID"},
			"too large":                     {grpcMessage(nil, streaming.LargeChunk+contentHead+1), nil, "MESSAGE_TOO_LARGE"},
			"the largest length":            {grpcMessage(nil, 1<<32-1), nil, "MESSAGE_TOO_LARGE"},
		} {
			conn := dialRaw(t, addr)
			name := strings.ReplaceAll(method+"-"+what, " ", "-")
			id := conn.open("/sandbox.v1.SandboxService/"+method, hpack.HeaderField{Name: call.RequestIDKey, Value: name})
			conn.data(id, append(append([]byte(nil), first...), c.data...), false)
			if c.end != nil {
				c.end(conn, id)
			}
			for r := range records {
				if r.RequestID != name {
					continue
				}
				if r.Reason != c.reason {
					t.Errorf("%s, %s: %+v", method, what, r)
				}
				break
			}
		}
	}
}

func halfClose(c *rawConn, id uint32) { c.data(id, nil, true) }

func resetStream(c *rawConn, id uint32) {
	_ = c.framer.WriteRSTStream(id, http2.ErrCodeCancel)
	c.flush()
}
