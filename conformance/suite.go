package conformance

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	sandgate "github.com/sandgate/sandgate/clients/go"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Options describe what to test, and how.
type Options struct {
	// Address of the server, as clients write it.
	Address string
	// Client are further options of the clients: credentials and the like.
	Client []sandgate.Option
	// Seed of all that is random. The same seed makes the same choices.
	Seed uint64
	// Scale of the large cases: 1 is 1 GiB of output, 10 000 commands one after
	// the other, 1 000 at once. 0: 1.
	Scale float64
	// Template of the sandboxes. Empty: the server's default.
	Template string
	// CutInner breaks every connection between the server and the agents and returns
	// their number. nil: the cases that need it are skipped.
	CutInner func(context.Context) (int, error)
	// GoProgram is a static build of conformance/goprogram for the sandboxes'
	// machine. Empty: the cases that run it are skipped.
	GoProgram []byte
	// Upstream is a host name and port at which this suite may listen and which a
	// template allows sandboxes to connect to, with its address. Empty: the cases
	// that need it are skipped.
	Upstream string
	// UpstreamCertificate is a certificate for Upstream's name that the server trusts.
	// nil: the cases in which the server ends TLS are skipped.
	UpstreamCertificate *tls.Certificate
	// CaseTimeout bounds one case. 0: 5 minutes.
	CaseTimeout time.Duration
}

// Suite holds one server to the cases. Cases run one at a time.
type Suite struct {
	opts   Options
	info   *sandgate.ServerInfo
	client *sandgate.Client
	// once is a client that repeats nothing, stub its connection: for cases that
	// are about the protocol itself.
	once *sandgate.Client
	stub sandboxv1.SandboxServiceClient
	run  string // this run, as a label

	mu      sync.Mutex
	ids     map[string]bool // sandboxes that are there, as far as is known
	shared  *sandgate.Sandbox
	serials int
}

// label marks every sandbox of a suite; its value is the run.
const label = "sandgate-conformance"

// lifetime bounds the sandboxes of a suite that was killed before it could delete them.
const lifetime = 3 * time.Hour

// Open reaches the server.
func Open(ctx context.Context, opts Options) (*Suite, error) {
	if opts.Scale == 0 {
		opts.Scale = 1
	}
	if opts.CaseTimeout == 0 {
		opts.CaseTimeout = 5 * time.Minute
	}
	var id [4]byte
	_, _ = rand.Read(id[:]) // Read never fails: it ends the program instead.
	s := &Suite{opts: opts, ids: map[string]bool{}, run: hex.EncodeToString(id[:])}
	var err error
	if s.client, err = s.connect(ctx); err != nil {
		return nil, err
	}
	// A client does not show its connection, but an interceptor sees it.
	var conn *grpc.ClientConn
	look := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		conn = cc
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	s.once, err = s.connect(ctx, sandgate.WithReconnectTimeout(0), sandgate.WithDialOptions(grpc.WithChainUnaryInterceptor(look)))
	if err == nil {
		s.info, err = s.once.ServerInfo(ctx)
	}
	if err == nil {
		_, err = s.client.ServerInfo(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.disconnect())
	}
	s.stub = sandboxv1.NewSandboxServiceClient(conn)
	return s, nil
}

// connect makes a client with the suite's options and more.
func (s *Suite) connect(ctx context.Context, more ...sandgate.Option) (*sandgate.Client, error) {
	opts := append([]sandgate.Option{sandgate.WithAddress(s.opts.Address)}, s.opts.Client...)
	return sandgate.NewClient(ctx, append(opts, more...)...)
}

// Info returns the server's description of itself.
func (s *Suite) Info() *sandgate.ServerInfo { return s.info }

// Run holds the server to one case, and skips it where it cannot hold. ctx
// bounds it beside the suite's own limit.
func (s *Suite) Run(ctx context.Context, t T, c Case) {
	t.Helper()
	if reason := s.Skips(c); reason != "" {
		t.Skipf("%s", reason)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.opts.CaseTimeout, fmt.Errorf("the case took longer than %v", s.opts.CaseTimeout))
	defer cancel()
	c.run(ctx, t, s)
	if s.shared != nil {
		s.forgetIfLost(ctx, t)
	}
}

// Skips returns why a case does not apply here, or nothing.
func (s *Suite) Skips(c Case) string {
	enforced := map[string]*sandboxv1.Enforcement{}
	for _, e := range s.info.GetEnforcement() {
		enforced[e.GetName()] = e
	}
	for _, name := range c.needs {
		switch e := enforced[name]; {
		case e == nil:
			return fmt.Sprintf("the server does not say whether %s is enforced", name)
		case !e.GetEnforced():
			return fmt.Sprintf("the server does not enforce %s: %s", name, e.GetDetail())
		}
	}
	if c.proxy && !slices.Contains(s.info.GetCapabilities(), "network_proxy") {
		return "the server cannot do the network mode PROXY"
	}
	if c.hook && s.opts.CutInner == nil {
		return "needs a hook that cuts the connections between server and sandbox"
	}
	return ""
}

// enforces reports whether the server enforces a protection.
func (s *Suite) enforces(name string) bool {
	return slices.ContainsFunc(s.info.GetEnforcement(), func(e *sandboxv1.Enforcement) bool { return e.GetName() == name && e.GetEnforced() })
}

// forgetIfLost fails the case that broke the shared sandbox, and spares those
// that follow.
func (s *Suite) forgetIfLost(ctx context.Context, t T) {
	t.Helper()
	result, err := s.shared.Execute(ctx, sandgate.ExecuteRequest{Shell: "echo alive", Timeout: time.Minute})
	if err != nil || string(result.Stdout) != "alive\n" {
		t.Errorf("afterwards the sandbox does not work: %v, %v", result, err)
		s.shared = nil
	}
}

// sandbox returns the sandbox that most cases share, or a new one for a case that
// needs limits.
func (s *Suite) sandbox(ctx context.Context, t T, limits *sandboxv1.Resources) *sandgate.Sandbox {
	t.Helper()
	if limits == nil && s.shared != nil {
		return s.shared
	}
	request := s.request("")
	if limits != nil {
		request.Spec = &sandgate.Spec{Resources: limits}
	}
	made := s.create(ctx, t, request)
	if limits == nil {
		s.shared = made
		return made
	}
	t.Cleanup(func() { s.delete(t, made) })
	return made
}

// create creates a sandbox, which Close deletes at the latest.
func (s *Suite) create(ctx context.Context, t T, r sandgate.CreateRequest) *sandgate.Sandbox {
	t.Helper()
	if r.ID == "" {
		s.mu.Lock()
		s.serials++
		r.ID = fmt.Sprintf("conformance-%s-%d", s.run, s.serials)
		s.mu.Unlock()
	}
	s.note(r.ID, true) // before the call: its reply may get lost
	made, _, err := s.client.Create(ctx, r)
	if errors.Is(err, sandgate.Reason("TEMPLATE_FORBIDS")) || errors.Is(err, sandgate.Reason("FEATURE_UNSUPPORTED")) {
		t.Skipf("the template or the server does not allow the sandbox that this needs: %v", err)
	}
	if err != nil {
		t.Fatalf("create a sandbox: %v", err)
	}
	return made
}

// workdir returns the directory in which a sandbox's commands start, and in which the
// cases make their files.
func (s *Suite) workdir(ctx context.Context, t T, sandbox *sandgate.Sandbox) string {
	t.Helper()
	return strings.TrimSpace(Sandbox{Client: s.stub, ID: sandbox.ID()}.sh(ctx, t, "pwd").stdout)
}

func (s *Suite) note(id string, there bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids[id] = there; !there {
		delete(s.ids, id)
	}
}

// delete deletes a sandbox even if the case's context has ended.
func (s *Suite) delete(t T, made *sandgate.Sandbox) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	if _, err := s.client.Delete(ctx, made.ID()); err != nil {
		t.Errorf("delete %s: %v", made.ID(), err)
		return
	}
	s.note(made.ID(), false)
}

// target returns a sandbox for the cases that use a single one.
func (s *Suite) target(ctx context.Context, t T, limits *sandboxv1.Resources) Sandbox {
	t.Helper()
	made := s.sandbox(ctx, t, limits)
	return Sandbox{Client: s.stub, ID: made.ID(), Whole: whole(made.Created()), NoSeccomp: noSeccomp(made.Created()), GoProgram: s.opts.GoProgram}
}

// whole reports whether the sandbox's kernel is a process of the host's, as gVisor's,
// which the host kills with the whole sandbox if it runs out of memory.
func whole(info *sandgate.Info) bool {
	runtime := info.GetIsolation().GetRuntime()
	return strings.HasPrefix(runtime, "runsc") || runtime == "pod/gvisor"
}

func noSeccomp(info *sandgate.Info) bool {
	return slices.ContainsFunc(info.GetIsolation().GetNotEnforced(), func(what string) bool { return strings.HasPrefix(what, "seccomp: ") })
}

// Close deletes the suite's sandboxes. It returns an error for each leftover: a command
// that still runs, or a sandbox that still exists. ctx bounds it.
func (s *Suite) Close(ctx context.Context) error {
	var errs []error
	if s.shared != nil {
		running, err := s.shared.Processes(ctx, false)
		if err != nil {
			errs = append(errs, fmt.Errorf("list the commands that run: %w", err))
		}
		for _, p := range running {
			errs = append(errs, fmt.Errorf("the command %s runs on: %s", p.GetExecId(), brief(p.GetCommand())))
		}
	}
	s.mu.Lock()
	var ids []string
	for id := range s.ids {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	for _, id := range ids {
		if _, err := s.client.Delete(ctx, id); err != nil {
			errs = append(errs, fmt.Errorf("delete %s: %w", id, err))
		}
	}
	if len(ids) > 0 && len(errs) == 0 {
		for info, err := range s.client.List(ctx, sandgate.ListRequest{Labels: map[string]string{label: s.run}}) {
			if err != nil {
				errs = append(errs, fmt.Errorf("list what is left: %w", err))
				break
			}
			errs = append(errs, fmt.Errorf("the sandbox %s is still there", info.GetSandboxId()))
		}
	}
	return errors.Join(errors.Join(errs...), s.disconnect())
}

func (s *Suite) disconnect() error {
	var errs []error
	for _, c := range []*sandgate.Client{s.client, s.once} {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

// through makes a client whose connections go through a proxy.
func (s *Suite) through(ctx context.Context, t T, p *proxy) *sandgate.Client {
	t.Helper()
	client, err := s.connect(ctx, sandgate.WithDialOptions(grpc.WithContextDialer(
		func(ctx context.Context, _ string) (net.Conn, error) { return p.dial(ctx) })))
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if _, err := client.ServerInfo(ctx); err != nil {
		t.Fatalf("reach the server through a proxy: %v", err)
	}
	return client
}
