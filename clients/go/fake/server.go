// Package fake is a SandboxService in memory, for tests of its clients. Its sandboxes
// run no programs: a function of the test plays every command.
package fake

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/timestamppb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Server is a server with one tenant. Its fields must be set before it is used.
type Server struct {
	sandboxv1.UnimplementedSandboxServiceServer

	// Play plays every command. Default: the command exits with 0.
	Play func(*Run)
	// MaxStdin is how many bytes one WriteStdin takes at most. 0: all.
	MaxStdin int
	// CannotSuspend makes suspending fail, as with a provider that cannot.
	CannotSuspend bool
	// Stuck is a sandbox that a cleanup cannot delete.
	Stuck string
	// Token, if set, is the only accepted token, until SetToken.
	Token string
	// Seen, if set, is called with the full method name and metadata of each call.
	Seen func(method string, md metadata.MD)
	// Rejected, if set, is called after a call with another token, before its error is sent.
	Rejected func()
	// Fail, if set, is called before each call with its full method name; the call returns
	// its error.
	Fail func(method string) error
	// Away, if set, is called before each new connection; true refuses it.
	Away func() bool
	// Late, if set, is called with the full method name of each unary call, between its
	// effect and its reply.
	Late func(method string)

	listener  *bufconn.Listener
	mu        sync.Mutex
	conns     []net.Conn
	streams   []context.CancelCauseFunc
	sandboxes map[string]*sandbox
	calls     map[string]int
	plays     sync.WaitGroup
}

// sandbox is one sandbox of the fake.
type sandbox struct {
	info  *sandboxv1.Sandbox
	spec  *sandboxv1.CreateSandboxRequest
	runs  map[string]*Run
	order []*Run
	files map[string][]byte
	parts map[string][]byte
}

// Start serves until the test ends.
func Start(t *testing.T, s *Server) *Server {
	t.Helper()
	s.listener = bufconn.Listen(1 << 20)
	s.sandboxes, s.calls = map[string]*sandbox{}, map[string]int{}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if err := s.admit(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			reply, err := next(ctx, req)
			if s.Late != nil {
				s.Late(info.FullMethod)
			}
			return reply, err
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if err := s.admit(stream.Context(), info.FullMethod); err != nil {
				return err
			}
			ctx, cancel := context.WithCancelCause(stream.Context())
			defer cancel(nil)
			s.mu.Lock()
			s.streams = append(s.streams, cancel)
			s.mu.Unlock()
			err := next(srv, &revocable{ServerStream: stream, ctx: ctx})
			if errors.Is(context.Cause(ctx), errRevoked) {
				return errRevoked
			}
			return err
		}),
	)
	sandboxv1.RegisterSandboxServiceServer(server, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(s.listener)
	}()
	t.Cleanup(func() {
		s.mu.Lock()
		for _, b := range s.sandboxes {
			b.stop()
		}
		s.mu.Unlock()
		server.Stop()
		<-done
		s.plays.Wait()
	})
	return s
}

// DialOptions returns options that connect a client to this server at any address.
func (s *Server) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			if s.Away != nil && s.Away() {
				return nil, syscall.ECONNREFUSED
			}
			conn, err := s.listener.DialContext(ctx)
			if err == nil {
				s.mu.Lock()
				s.conns = append(s.conns, conn)
				s.mu.Unlock()
			}
			return conn, err
		}),
	}
}

// Cut breaks every connection that there is now.
func (s *Server) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.conns {
		_ = conn.Close()
	}
	s.conns = nil
}

// errRevoked is the error of a call whose credentials ended while it ran.
var errRevoked = Error(codes.Unauthenticated, "CREDENTIALS_INVALID", "the credentials of this call expired or were revoked while it ran",
	&errdetails.ErrorInfo{Reason: "CREDENTIALS_INVALID", Domain: "sandgate", Metadata: map[string]string{"outcome": "unknown"}})

// revocable is a stream that SetToken ends.
type revocable struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // As of the stream that it wraps.
}

func (r *revocable) Context() context.Context { return r.ctx }

// SetToken replaces the accepted token and ends the streams that were opened with another.
func (s *Server) SetToken(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Token = token
	for _, cancel := range s.streams {
		cancel(errRevoked)
	}
	s.streams = nil
}

// Calls counts the calls of a method, such as "Attach".
func (s *Server) Calls(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[method]
}

// admit counts and authenticates a call.
func (s *Server) admit(ctx context.Context, method string) error {
	s.mu.Lock()
	s.calls[method[strings.LastIndex(method, "/")+1:]]++
	s.mu.Unlock()
	md, _ := metadata.FromIncomingContext(ctx)
	if s.Seen != nil {
		s.Seen(method, md)
	}
	if len(md.Get("x-request-id")) != 1 {
		return Error(codes.InvalidArgument, "REQUEST_INVALID", "there is not exactly one request id")
	}
	s.mu.Lock()
	token := s.Token
	s.mu.Unlock()
	if token != "" && !slices.Equal(md.Get("authorization"), []string{"Bearer " + token}) {
		if s.Rejected != nil {
			s.Rejected()
		}
		return Error(codes.Unauthenticated, "CREDENTIALS_INVALID", "the token is not known")
	}
	if s.Fail != nil {
		return s.Fail(method)
	}
	return nil
}

// Error makes an error as a server does.
func Error(code codes.Code, reason, message string, details ...proto.Message) error {
	st := status.New(code, message)
	all := []proto.Message{&errdetails.ErrorInfo{Reason: reason, Domain: "sandgate"}}
	for _, detail := range append(all, details...) {
		st, _ = st.WithDetails(protoadapt.MessageV1Of(detail))
	}
	return st.Err()
}

// box returns a sandbox; the caller holds mu.
func (s *Server) sandbox(id, incarnation string) (*sandbox, error) {
	b, ok := s.sandboxes[id]
	if !ok {
		return nil, Error(codes.NotFound, "SANDBOX_NOT_FOUND", "there is no sandbox \""+id+"\"")
	}
	if incarnation != "" && incarnation != b.info.GetIncarnation() {
		return nil, Error(codes.FailedPrecondition, "SANDBOX_REPLACED", "the sandbox was replaced")
	}
	return b, nil
}

func (b *sandbox) stop() {
	for _, run := range b.order {
		run.Kill(sandboxv1.ExitReason_EXIT_REASON_SANDBOX_STOPPED)
	}
}

// GetServerInfo describes the fake.
func (s *Server) GetServerInfo(context.Context, *sandboxv1.GetServerInfoRequest) (*sandboxv1.GetServerInfoResponse, error) {
	return &sandboxv1.GetServerInfoResponse{
		Version: "0.0.0", Provider: "fake", Templates: []string{"default"}, Principal: &sandboxv1.Principal{Tenant: "default"},
		Enforcement: []*sandboxv1.Enforcement{{Name: "network", Enforced: true, Detail: "there is none"}},
	}, nil
}

// CreateSandbox creates a sandbox, or returns the one that exists.
func (s *Server) CreateSandbox(_ context.Context, r *sandboxv1.CreateSandboxRequest) (*sandboxv1.CreateSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := r.GetSandboxId()
	if id == "" {
		id = "made-up"
	}
	if b, ok := s.sandboxes[id]; ok {
		if !proto.Equal(b.spec, r) {
			return nil, Error(codes.AlreadyExists, "SANDBOX_SPEC_DIFFERS", "the id exists with another spec")
		}
		return &sandboxv1.CreateSandboxResponse{Sandbox: b.info}, nil
	}
	b := &sandbox{
		spec: r, runs: map[string]*Run{}, files: map[string][]byte{}, parts: map[string][]byte{},
		info: &sandboxv1.Sandbox{
			SandboxId: id, Incarnation: "first", State: sandboxv1.SandboxState_SANDBOX_STATE_ACTIVE, Template: "default",
			Labels: r.GetLabels(), Spec: r.GetSpec(), CreateTime: timestamppb.Now(), LastActivityTime: timestamppb.Now(),
		},
	}
	s.sandboxes[id] = b
	return &sandboxv1.CreateSandboxResponse{Sandbox: b.info, Created: true}, nil
}

// GetSandbox returns a sandbox.
func (s *Server) GetSandbox(_ context.Context, r *sandboxv1.GetSandboxRequest) (*sandboxv1.GetSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.sandbox(r.GetSandboxId(), "")
	if err != nil {
		return nil, err
	}
	return &sandboxv1.GetSandboxResponse{Sandbox: b.info}, nil
}

// ListSandboxes gives one sandbox per page, after an empty page.
func (s *Server) ListSandboxes(_ context.Context, r *sandboxv1.ListSandboxesRequest) (*sandboxv1.ListSandboxesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.GetPageToken() == "" {
		return &sandboxv1.ListSandboxesResponse{NextPageToken: "!"}, nil
	}
	reply := &sandboxv1.ListSandboxesResponse{}
	for _, id := range slices.Sorted(maps.Keys(s.sandboxes)) {
		labels := s.sandboxes[id].info.GetLabels()
		matches := len(r.GetStates()) == 0 || slices.Contains(r.GetStates(), s.sandboxes[id].info.GetState())
		for key, value := range r.GetLabels() {
			matches = matches && labels[key] == value
		}
		if "!"+id <= r.GetPageToken() || !matches {
			continue
		}
		if len(reply.GetSandboxes()) == 1 {
			reply.NextPageToken = "!" + reply.GetSandboxes()[0].GetSandboxId()
			break
		}
		reply.Sandboxes = append(reply.Sandboxes, s.sandboxes[id].info)
	}
	return reply, nil
}

// DeleteSandbox ends a sandbox.
func (s *Server) DeleteSandbox(_ context.Context, r *sandboxv1.DeleteSandboxRequest) (*sandboxv1.DeleteSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.sandbox(r.GetSandboxId(), r.GetExpectedIncarnation())
	if err != nil {
		if r.GetAllowMissing() && status.Code(err) == codes.NotFound {
			return &sandboxv1.DeleteSandboxResponse{}, nil
		}
		return nil, err
	}
	b.stop()
	delete(s.sandboxes, r.GetSandboxId())
	return &sandboxv1.DeleteSandboxResponse{Deleted: true}, nil
}

// Replace makes a sandbox lose its disk and processes.
func (s *Server) Replace(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.sandboxes[id]
	b.stop()
	b.runs, b.order, b.files = map[string]*Run{}, nil, map[string][]byte{}
	b.info = proto.Clone(b.info).(*sandboxv1.Sandbox)
	b.info.Incarnation += "'"
}
