package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/names"
)

// method is an RPC of any service that the server has.
type method struct {
	full   string
	health bool
	desc   protoreflect.MethodDescriptor // nil: the server does not know it
}

// methods returns all RPCs, so that a new one is tested by itself.
func methods(t *testing.T, s *Server) []method {
	t.Helper()
	var all []method
	for name := range s.services {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
		if err != nil {
			t.Fatal(err)
		}
		list := d.(protoreflect.ServiceDescriptor).Methods()
		for i := range list.Len() {
			full := fmt.Sprintf("/%s/%s", name, list.Get(i).Name())
			all = append(all, method{full, call.IsHealth(full), list.Get(i)})
		}
	}
	if n := len(sandboxv1.SandboxService_ServiceDesc.Methods) + len(sandboxv1.SandboxService_ServiceDesc.Streams); len(all) < n {
		t.Fatalf("%d methods, want at least %d", len(all), n)
	}
	return append(all, method{full: "/sandbox.v1.SandboxService/Unknown"}, method{full: "/sandbox.agent.v1.AgentService/Execute"})
}

// endless are the RPCs that end with the caller: the first message tells whether the
// call is allowed.
var endless = map[string]bool{
	"/grpc.health.v1.Health/Watch":              true,
	"/sandbox.v1.SandboxService/WatchSandboxes": true,
}

// call makes one call for the sandbox "victim" and returns what came back.
func (m method) call(ctx context.Context, conn *grpc.ClientConn) (string, error) {
	var request, reply proto.Message = &sandboxv1.GetServerInfoRequest{}, &sandboxv1.GetServerInfoResponse{}
	if m.desc != nil {
		request, reply = fill(m.desc.Input(), 0), dynamicpb.NewMessage(m.desc.Output())
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, m.full)
	if err != nil {
		return "", err
	}
	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	if err := stream.CloseSend(); err != nil {
		return "", err
	}
	var got strings.Builder
	for {
		err := stream.RecvMsg(reply)
		if errors.Is(err, io.EOF) {
			return got.String(), nil
		}
		if err != nil {
			return got.String(), err
		}
		raw, err := proto.Marshal(reply)
		if err != nil {
			return "", err
		}
		got.Write(raw)
		if endless[m.full] {
			return got.String(), nil
		}
	}
}

// fill returns a request that is valid as far as names and types tell.
func fill(d protoreflect.MessageDescriptor, depth int) *dynamicpb.Message {
	m := dynamicpb.NewMessage(d)
	chosen := map[protoreflect.OneofDescriptor]bool{}
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if o := f.ContainingOneof(); o != nil && !o.IsSynthetic() {
			if chosen[o] {
				continue
			}
			chosen[o] = true
			if f.Message() != nil && depth < 2 {
				m.Set(f, protoreflect.ValueOfMessage(fill(f.Message(), depth+1)))
				continue
			}
		}
		value := map[protoreflect.Name]string{
			"sandbox_id": "victim", "path": "/workspace/secret", "source": "/workspace/secret", "destination": "/workspace/stolen",
			"shell": "true", "exec_id": "victims", "pattern": "x", "signal": "SIGKILL", "upload_id": "u", "old_text": "x",
			"file_by_filename": "sandbox/v1/sandbox_service.proto",
		}[f.Name()]
		switch {
		case f.Name() == "items" && f.IsList():
			m.Mutable(f).List().Append(protoreflect.ValueOfMessage(fill(f.Message(), depth+1)))
		case f.Name() == "size" && f.Message() != nil:
			m.Set(f, protoreflect.ValueOfMessage(fill(f.Message(), depth+1)))
		case (f.Name() == "rows" || f.Name() == "columns") && f.Kind() == protoreflect.Int32Kind:
			m.Set(f, protoreflect.ValueOfInt32(20))
		case f.Name() == "port":
			m.Set(f, protoreflect.ValueOfInt32(3000))
		case f.Name() == "max_idle":
			nano := f.Message().Fields().ByName("nanos")
			m.Mutable(f).Message().Set(nano, protoreflect.ValueOfInt32(1))
		case value != "" && f.Kind() == protoreflect.StringKind && !f.IsList():
			m.Set(f, protoreflect.ValueOfString(value))
		case value != "" && f.Kind() == protoreflect.BytesKind:
			m.Set(f, protoreflect.ValueOfBytes([]byte(value)))
		}
	}
	return m
}

// pooled is a provider that keeps a pool.
type pooled struct{ *scriptedProvider }

func (pooled) KeepPools(context.Context, []providers.Pool) error { return nil }
func (pooled) PoolStatus(context.Context, string) (providers.PoolStatus, error) {
	return providers.PoolStatus{Available: 3, Active: 99, Total: 102, Target: 3}, nil
}

// marker is in everything that a response could reveal about the victim.
const marker = "of-the-victim"

// victim makes a sandbox of the tenant "blue" and returns a function that fails
// when something about it changed.
func victim(t *testing.T, p *scriptedProvider) func(t *testing.T) {
	t.Helper()
	name := names.Substrate("blue", "victim")
	p.make(name, providers.Spec{Tenant: "blue", ID: "victim", Labels: map[string]string{"of": marker}, Template: "default"})
	look := func(t *testing.T) string {
		info, err := p.Get(t.Context(), name)
		if err != nil {
			t.Fatalf("the victim is gone: %v", err)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		return fmt.Sprint(info.Incarnation, info.LastActivity, info.Spec, info.State, p.sandboxes[name].dials.Load())
	}
	before := look(t)
	return func(t *testing.T) {
		if now := look(t); now != before {
			t.Errorf("the victim changed from %s to %s", before, now)
		}
	}
}

// newMatrix serves what the tests of all RPCs call, with a sandbox "victim" of the tenant
// "blue". unchanged fails when something about it changed.
func newMatrix(t *testing.T, change func(*Config)) (addr string, srv *Server, records *matrixRecords, unchanged func(*testing.T)) {
	t.Helper()
	var provider pooled
	records = newMatrixRecords()
	addr, srv = tcpHarness(t, func(c *Config) {
		provider = pooled{c.Provider.(*scriptedProvider)}
		c.Provider, c.Preview, c.Audit = provider, testURLs(t), records
		change(c)
	})
	return addr, srv, records, victim(t, provider.scriptedProvider)
}

// namesSandbox reports whether a call is about one sandbox.
func namesSandbox(m protoreflect.MethodDescriptor) bool {
	return m.Input().Fields().ByName("sandbox_id") != nil || m.Name() == "Upload" || m.Name() == "Forward"
}

// otherTenant makes every call as another tenant, whose credentials are valid:
// it finds nothing of the victim.
func otherTenant(ctx context.Context, t *testing.T, s *Server, conn *grpc.ClientConn) {
	t.Helper()
	for _, m := range methods(t, s) {
		got, err := m.call(ctx, conn)
		if strings.Contains(got, marker) || err != nil && strings.Contains(err.Error(), marker) {
			t.Errorf("%s: the victim is in %q, %v", m.full, got, err)
		}
		if m.desc == nil {
			if status.Code(err) != codes.Unimplemented {
				t.Errorf("%s: got %v", m.full, err)
			}
			continue
		}
		id := namesSandbox(m.desc)
		want := codes.OK
		switch m.desc.Name() {
		case "CreateSandbox": // makes one of its own, which the next call takes away
			_, err := sandboxv1.NewSandboxServiceClient(conn).DeleteSandbox(ctx, &sandboxv1.DeleteSandboxRequest{SandboxId: "victim"})
			if err != nil {
				t.Errorf("delete its own: %v", err)
			}
		case "SuspendSandbox", "ResumeSandbox":
			want = codes.Unimplemented // in this provider
		default:
			if id {
				want = codes.NotFound
			}
		}
		if code := status.Code(err); code != want {
			t.Errorf("%s: got %v, want %s", m.full, err, want)
		}
	}
	status, err := sandboxv1.NewSandboxServiceClient(conn).GetPoolStatus(ctx, &sandboxv1.GetPoolStatusRequest{})
	if err != nil || status.GetActive() != 0 || status.GetTotal() != 3 {
		t.Errorf("another tenant's sandboxes are counted: %v, %v", status, err)
	}
}

// TestEveryRPCWithEveryCredential calls every RPC with every kind of credentials.
func TestEveryRPCWithEveryCredential(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	var lines []string
	token := func(name, tenant, more string) string {
		token, e, err := authn.NewToken(authn.Entry{Name: name, Tenant: tenant})
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("  - {name: %s, tenant: %s, sha256: %s%s}\n", name, tenant, e.SHA256, more))
		return token
	}
	owner := token("ann", "blue", "")
	other := token("eve", "red", "")
	expired := token("old", "blue", ", expires: 2020-01-01T00:00:00Z")
	revoked := token("gone", "blue", "")
	file := func(lines []string) {
		if err := os.WriteFile(path, []byte("tokens:\n"+strings.Join(lines, "")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file(lines)
	addr, srv, records, unchanged := newMatrix(t, func(c *Config) { useTokens(t, c, path) })
	conn := dialServer(t, addr, insecure.NewCredentials())
	auth := func(pairs ...string) context.Context { return metadata.AppendToOutgoingContext(t.Context(), pairs...) }
	valid := method{full: "/sandbox.v1.SandboxService/GetServerInfo"}
	for _, token := range []string{owner, revoked, other} {
		if _, err := valid.call(auth("authorization", "Bearer "+token), conn); err != nil {
			t.Fatalf("a valid token: %v", err)
		}
	}
	file(lines[:3])
	for late := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if _, err := valid.call(auth("authorization", "Bearer "+revoked), conn); err != nil {
			break
		}
		if time.Now().After(late) {
			t.Fatal("a token that was taken out still counts")
		}
	}
	refusedCalls(auth("authorization", "Bearer "+owner), t, srv, conn, records, map[string]context.Context{
		"none":         t.Context(),
		"malformed":    auth("authorization", "Bearer\x20\x20"),
		"empty":        auth("authorization", ""),
		"no scheme":    auth("authorization", owner),
		"wrong scheme": auth("authorization", "Basic "+owner),
		"two headers":  auth("authorization", "Bearer "+owner, "authorization", "Bearer "+owner),
		"two tokens":   auth("authorization", "Bearer "+owner+", Bearer "+other),
		"other header": auth("x-authorization", "Bearer "+owner),
		"wrong":        auth("authorization", "Bearer sgt_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
		"truncated":    auth("authorization", "Bearer "+owner[:len(owner)-1]),
		"upper case":   auth("authorization", "Bearer "+strings.ToUpper(owner)),
		"expired":      auth("authorization", "Bearer "+expired),
		"revoked":      auth("authorization", "Bearer "+revoked),
	}, unchanged)
	t.Run("other tenant", func(t *testing.T) {
		otherTenant(auth("authorization", "Bearer "+other), t, srv, conn)
		unchanged(t)
	})
	records.complete(t, srv)
}

// dialServer returns a client's connection to addr.
func dialServer(t *testing.T, addr string, creds credentials.TransportCredentials, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, append(opts, grpc.WithTransportCredentials(creds))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}
