package server

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/authn"
)

// halfMessage is the beginning of a message that never ends. It calls sent when the
// connection has taken it.
type halfMessage struct {
	rest io.Reader
	sent func()
	end  <-chan struct{}
}

func newHalfMessage(announced uint32, bytes int64, sent func(), end <-chan struct{}) *halfMessage {
	head := binary.BigEndian.AppendUint32([]byte{0}, announced)
	return &halfMessage{io.MultiReader(&prefix{head}, io.LimitReader(zeros{}, bytes)), sent, end}
}

func (m *halfMessage) Read(p []byte) (int, error) {
	n, err := m.rest.Read(p)
	if err == io.EOF && n == 0 {
		m.sent()
		<-m.end
		return 0, io.ErrUnexpectedEOF
	}
	return n, nil
}

type prefix struct{ left []byte }

func (p *prefix) Read(b []byte) (int, error) {
	if len(p.left) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.left)
	p.left = p.left[n:]
	return n, nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// tokensOf writes a file of tokens, one for each tenant, and returns its path and them.
func tokensOf(t *testing.T, tenants ...string) (path string, tokens map[string]string) {
	t.Helper()
	tokens = make(map[string]string)
	file := "tokens:\n"
	for _, tenant := range tenants {
		token, e, err := authn.NewToken(authn.Entry{Name: "user-" + tenant, Tenant: tenant})
		if err != nil {
			t.Fatal(err)
		}
		tokens[tenant] = token
		file += fmt.Sprintf("  - {name: %s, tenant: %s, sha256: %s}\n", e.Name, e.Tenant, e.SHA256)
	}
	path = filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	return path, tokens
}

// useTokens has a server accept the tokens of a file.
func useTokens(t *testing.T, c *Config, path string) {
	t.Helper()
	var err error
	if c.Authenticator, err = authn.OpenTokens(path, c.Logger); err != nil {
		t.Fatal(err)
	}
}

// tenants are the callers "one" and "two" of a server on a loopback port.
type tenants struct {
	t      *testing.T
	addr   string
	tokens map[string]string
}

func serveTenants(t *testing.T, change func(*Config)) *tenants {
	t.Helper()
	path, tokens := tokensOf(t, "one", "two")
	addr, _ := tcpHarness(t, func(c *Config) {
		change(c)
		useTokens(t, c, path)
	})
	return &tenants{t, addr, tokens}
}

// dial returns a new connection.
func (s *tenants) dial() *grpc.ClientConn {
	s.t.Helper()
	return dialServer(s.t, s.addr, insecure.NewCredentials())
}

func (s *tenants) call(conn *grpc.ClientConn, tenant string, opts ...grpc.CallOption) error {
	ctx := metadata.AppendToOutgoingContext(s.t.Context(), "authorization", "Bearer "+s.tokens[tenant])
	_, err := sandboxv1.NewSandboxServiceClient(conn).GetServerInfo(ctx, &sandboxv1.GetServerInfoRequest{}, opts...)
	return err
}

// Messages that never end hold a bounded amount of memory, and no other call fails: nor
// one of the same tenant, whose oldest calls are cut.
func TestHalfMessagesAreBounded(t *testing.T) {
	const conns, streams, bound = 8, 25, 64 << 20
	s := serveTenants(t, func(c *Config) { c.Limits.MaxRequestBytes = bound })
	end := make(chan struct{})
	var cut, other atomic.Int64
	var flood, settled sync.WaitGroup
	defer flood.Wait()
	defer close(end)
	grown := peak(func() {
		for range conns {
			transport := &http.Transport{Protocols: new(http.Protocols)}
			transport.Protocols.SetUnencryptedHTTP2(true)
			defer transport.CloseIdleConnections()
			for range streams {
				settled.Add(1)
				once := sync.OnceFunc(settled.Done)
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.addr+"/sandbox.v1.SandboxService/WriteFile",
					newHalfMessage(16<<20, 12<<20, once, end))
				if err != nil {
					t.Fatal(err)
				}
				req.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}, "Authorization": {"Bearer " + s.tokens["one"]}}
				flood.Go(func() {
					defer once()
					resp, err := transport.RoundTrip(req)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
					switch resp.Trailer.Get("Grpc-Status") + resp.Header.Get("Grpc-Status") {
					case "8":
						cut.Add(1)
					case "":
					default:
						other.Add(1)
					}
				})
			}
			for _, tenant := range []string{"one", "two"} {
				if err := s.call(s.dial(), tenant); err != nil {
					t.Errorf("a call of tenant %s: %v", tenant, err)
				}
			}
		}
		settled.Wait() // each has sent 12 MiB, or was cut
	})
	t.Logf("the heap grew by %d MiB, %d calls were cut", grown>>20, cut.Load())
	if grown > 4*bound {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	if cut.Load() == 0 || other.Load() > 0 {
		t.Errorf("%d calls ended with RESOURCE_EXHAUSTED, and %d otherwise", cut.Load(), other.Load())
	}
	for _, tenant := range []string{"one", "two"} {
		if err := s.call(s.dial(), tenant); err != nil {
			t.Errorf("a call of tenant %s: %v", tenant, err)
		}
		wantReason(t, s.call(s.dial(), tenant, grpc.UseCompressor(gzip.Name)), "FEATURE_UNSUPPORTED")
	}
}

// postUntilAnswered calls a method with a body that does not end before end is closed, and
// returns the answer, which it has read.
func postUntilAnswered(t *testing.T, addr, method string, body io.Reader, end chan<- struct{}) *http.Response {
	t.Helper()
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/sandbox.v1.SandboxService/"+method, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	close(end) // Close waits for a reader of the request
	_ = resp.Body.Close()
	return resp
}

// A call whose message does not arrive in time ends with a reason, for unary calls and
// streams alike.
func TestHalfMessageTimesOut(t *testing.T) {
	addr, _ := tcpHarness(t, func(c *Config) { c.Authenticator, c.Timing.Receive = nil, 100*time.Millisecond })
	for _, method := range []string{"WriteFile", "Execute"} {
		end := make(chan struct{})
		resp := postUntilAnswered(t, addr, method, newHalfMessage(1<<20, 1<<10, func() {}, end), end)
		code, message := resp.Trailer.Get("Grpc-Status"), resp.Trailer.Get("Grpc-Message")
		if code != "4" || !strings.Contains(message, "did not arrive within 100ms") {
			t.Errorf("%s: status %q, %q", method, code, message)
		}
	}
}

// Health calls need no credentials, and what they hold counts for the tenant of their
// connection. Nobody else's health checks fail by it.
func TestHealthCallsOfATenantFailNoOthers(t *testing.T) {
	s := serveTenants(t, func(c *Config) { c.Limits.MaxRequestBytes = 32 << 20 })
	one := s.dial()
	if err := s.call(one, "one"); err != nil {
		t.Fatal(err)
	}
	// Beside the 16 KiB of each call, all but 8 KiB of the bound.
	for _, size := range []int{10 << 20, 10 << 20, 10 << 20, 2<<20 - 4*16<<10 - 8<<10} {
		watch, err := healthv1.NewHealthClient(one).Watch(t.Context(), &healthv1.HealthCheckRequest{Service: strings.Repeat("x", size)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := watch.Recv(); err != nil {
			t.Fatal(size, err)
		}
	}
	two := s.dial()
	if err := s.call(two, "two"); err != nil {
		t.Errorf("a call of another tenant: %v", err)
	}
	for name, conn := range map[string]*grpc.ClientConn{"a pending connection": s.dial(), "a connection of another tenant": two} {
		watch, err := healthv1.NewHealthClient(conn).Watch(t.Context(), &healthv1.HealthCheckRequest{Service: strings.Repeat("x", 60<<10)})
		if err == nil {
			_, err = watch.Recv()
		}
		if err != nil {
			t.Errorf("a health check on %s: %v", name, err)
		}
	}
	wantReason(t, s.call(one, "one"), "QUOTA_EXCEEDED")
}
