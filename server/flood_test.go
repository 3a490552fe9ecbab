package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/encoding/protowire"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/authn"
)

// tcpHarness serves a server with credentials on a loopback port.
func tcpHarness(t *testing.T, change func(*Config)) (addr string, srv *Server) {
	t.Helper()
	p := newScriptedProvider(t)
	cfg := Config{Provider: p, Logger: slog.New(slog.DiscardHandler), Authenticator: nobody{},
		Timing: Timing{Drain: time.Millisecond, ReapInterval: time.Hour}}
	if change != nil {
		change(&cfg)
	}
	srv, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(srv.Shutdown(t.Context()), <-served); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
		p.stop()
	})
	return l.Addr().String(), srv
}

// rawConn speaks HTTP/2 frame by frame, as no client library does.
type rawConn struct {
	t      *testing.T
	conn   net.Conn
	out    *bytes.Buffer
	framer *http2.Framer
	enc    *hpack.Encoder
	block  bytes.Buffer
	next   uint32
	more   []byte // encoded headers for the end of each list
	// answers counts streams that the server ended; closed is closed when the
	// connection ended.
	answers atomic.Int64
	closed  chan struct{}
}

func dialRaw(t *testing.T, addr string) *rawConn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	c := &rawConn{t: t, conn: conn, out: new(bytes.Buffer), next: 1, closed: make(chan struct{})}
	c.framer = http2.NewFramer(c.out, conn)
	c.enc = hpack.NewEncoder(&c.block)
	c.out.WriteString(http2.ClientPreface)
	_ = c.framer.WriteSettings()
	c.flush()
	t.Cleanup(func() { conn.Close(); <-c.closed })
	go c.read()
	return c
}

func (c *rawConn) read() {
	defer close(c.closed)
	for {
		f, err := c.framer.ReadFrame()
		if err != nil {
			return
		}
		switch f := f.(type) {
		case *http2.HeadersFrame:
			if f.StreamEnded() {
				c.answers.Add(1)
			}
		case *http2.RSTStreamFrame:
			if f.ErrCode != http2.ErrCodeNo {
				c.answers.Add(1)
			}
		}
	}
}

// flush sends what was written. A server that hung up is no failure here.
func (c *rawConn) flush() {
	_, _ = c.conn.Write(c.out.Bytes())
	c.out.Reset()
}

// open writes the headers of a call and returns its stream.
func (c *rawConn) open(method string, more ...hpack.HeaderField) uint32 {
	id := c.next
	c.next += 2
	c.block.Reset()
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: method},
		{Name: ":authority", Value: "x"}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	}, more...) {
		_ = c.enc.WriteField(f)
	}
	c.headers(id, append(bytes.Clone(c.block.Bytes()), c.more...))
	return id
}

func (c *rawConn) headers(id uint32, block []byte) {
	const frame = 16 << 10
	first := block[:min(len(block), frame)]
	block = block[len(first):]
	_ = c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndHeaders: len(block) == 0})
	for len(block) > 0 {
		part := block[:min(len(block), frame)]
		block = block[len(part):]
		_ = c.framer.WriteContinuation(id, len(block) == 0, part)
	}
}

func (c *rawConn) data(id uint32, p []byte, end bool) {
	for len(p) > 16<<10 {
		_ = c.framer.WriteData(id, false, p[:16<<10])
		p = p[16<<10:]
		c.flush()
	}
	_ = c.framer.WriteData(id, end, p)
	c.flush()
}

// grpcMessage is a message of n bytes as gRPC frames it, without its last
// missing bytes.
func grpcMessage(p []byte, announced int) []byte {
	head := make([]byte, 5, 5+len(p))
	binary.BigEndian.PutUint32(head[1:], uint32(announced))
	return append(head, p...)
}

// emptyValues is a CreateSandbox whose options are a list of n empty values: two
// bytes each on the wire, and a hundred in memory.
func emptyValues(n int) []byte {
	in := func(number protowire.Number, content []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
	}
	const listValue = 6
	list := in(listValue, bytes.Repeat([]byte{0x0a, 0x00}, n))
	fields := new(sandboxv1.CreateSandboxRequest).ProtoReflect().Descriptor().Fields()
	request := in(fields.ByName("provider_options").Number(), in(1, append(in(1, []byte("a")), in(2, list)...)))
	return grpcMessage(request, len(request))
}

// A message that a caller sends wrongly is the caller's error in all records, and none of
// the server: operators have an alert for those.
func TestMalformedMessagesAreTheCallersErrors(t *testing.T) {
	records := make(auditList, 1)
	addr, _ := tcpHarness(t, func(c *Config) { c.Authenticator, c.Audit = nil, records })
	empty := grpcMessage(nil, 0)
	for what, c := range map[string]struct {
		data   []byte
		end    bool
		reason string
	}{
		"none":                   {nil, true, "REQUEST_INVALID"},
		"half of one":            {grpcMessage(make([]byte, 10), 1000), true, "REQUEST_INVALID"},
		"two":                    {append(bytes.Clone(empty), empty...), true, "REQUEST_INVALID"},
		"larger than gRPC takes": {grpcMessage(nil, 64<<20), false, "MESSAGE_TOO_LARGE"},
		"compressed":             {append([]byte{1}, empty[1:]...), true, "REQUEST_INVALID"},
		"of no known format":     {append([]byte{7}, empty[1:]...), true, "REQUEST_INVALID"},
	} {
		for _, method := range []string{"GetSandbox", "Execute", "Upload", "Forward"} {
			conn := dialRaw(t, addr)
			conn.data(conn.open("/sandbox.v1.SandboxService/"+method), c.data, c.end)
			r := <-records
			stream := method == "Upload" || method == "Forward"
			if (what == "none" || what == "two") && stream {
				continue // They take any number of messages.
			}
			if r.Operation != method || r.Reason != c.reason {
				t.Errorf("%s, %s: %+v", what, method, r)
			}
		}
	}
}

// nobody rejects all credentials.
type nobody struct{}

func (nobody) Name() string { return "nobody" }
func (nobody) Authenticate(context.Context) (authn.Principal, error) {
	return authn.Principal{}, authn.ErrNoCredentials
}

// peak runs f and returns by how much the heap grew meanwhile.
func peak(f func()) uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	before, most := m.HeapAlloc, m.HeapAlloc
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	for {
		select {
		case <-done:
			return most - before
		case <-time.After(5 * time.Millisecond):
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapAlloc)
		}
	}
}

const createMethod = "/sandbox.v1.SandboxService/CreateSandbox"

// What a caller without credentials sends is not kept, decoded or waited for.
func TestFloodBeforeAuthentication(t *testing.T) {
	for name, attack := range map[string]func(*testing.T, *rawConn){
		"messages without their end": func(t *testing.T, c *rawConn) {
			message := grpcMessage(make([]byte, 700<<10), 64<<20)
			for range 10 {
				c.data(c.open(createMethod), message, false)
			}
			c.await(10)
		},
		"message of empty values": func(t *testing.T, c *rawConn) {
			c.data(c.open(createMethod), emptyValues(3<<20), true)
			c.await(1)
		},
		"indexed headers": func(t *testing.T, c *rawConn) {
			x := hpack.HeaderField{Name: "x", Value: "y"}
			c.open(createMethod, x) // the server's table has it now
			c.block.Reset()
			_ = c.enc.WriteField(x)
			many := bytes.Repeat(c.block.Bytes(), 460_000)
			for range 20 {
				c.more = many
				c.open(createMethod)
				c.flush()
			}
			c.awaitEnd()
		},
		"calls without a message": func(t *testing.T, c *rawConn) {
			for range 10_000 {
				c.open(createMethod)
				c.flush()
			}
			c.awaitEnd()
		},
		"calls with a deadline": func(t *testing.T, c *rawConn) {
			for range 10_000 {
				c.open(createMethod, hpack.HeaderField{Name: "grpc-timeout", Value: "99999999H"})
				c.flush()
			}
			c.awaitEnd()
		},
		"health calls without a message": func(t *testing.T, c *rawConn) {
			for range 1000 {
				c.data(c.open("/grpc.health.v1.Health/Check"), grpcMessage(make([]byte, 1000), 4<<20), false)
			}
			c.awaitEnd()
		},
	} {
		t.Run(name, func(t *testing.T) {
			addr, _ := tcpHarness(t, nil)
			grown := peak(func() { attack(t, dialRaw(t, addr)) })
			t.Logf("the heap grew by %d KiB", grown>>10)
			if grown > 64<<20 {
				t.Errorf("the heap grew by %d MiB", grown>>20)
			}
		})
	}
}

// await waits for n answers.
func (c *rawConn) await(n int64) {
	for late := time.Now().Add(20 * time.Second); c.answers.Load() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			c.t.Errorf("%d of %d calls were answered", c.answers.Load(), n)
			return
		}
	}
}

// awaitEnd waits for the server to close the connection.
func (c *rawConn) awaitEnd() {
	select {
	case <-c.closed:
	case <-time.After(20 * time.Second):
		c.t.Error("the server kept the connection")
	}
}
