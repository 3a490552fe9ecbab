package sandgate

import (
	"cmp"
	"context"
	"iter"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

type (
	// ServerInfo describes the server to this caller.
	ServerInfo = sandboxv1.GetServerInfoResponse
	// Info describes a sandbox.
	Info = sandboxv1.Sandbox
	// Spec holds the portable properties of a sandbox.
	Spec = sandboxv1.SandboxSpec
	// Resources are upper limits. 0 means: the template's value.
	Resources = sandboxv1.Resources
	// Network describes what a sandbox can reach.
	Network = sandboxv1.Network
	// State is the state of a sandbox.
	State = sandboxv1.SandboxState
	// PoolStatus counts a pool's sandboxes.
	PoolStatus = sandboxv1.GetPoolStatusResponse
	// Cleaned is the result of a cleanup.
	Cleaned = sandboxv1.CleanupSandboxesResponse
)

// States of a sandbox.
const (
	Creating  = sandboxv1.SandboxState_SANDBOX_STATE_CREATING
	Active    = sandboxv1.SandboxState_SANDBOX_STATE_ACTIVE
	Suspended = sandboxv1.SandboxState_SANDBOX_STATE_SUSPENDED
	Deleting  = sandboxv1.SandboxState_SANDBOX_STATE_DELETING
	Failed    = sandboxv1.SandboxState_SANDBOX_STATE_FAILED
)

// Unlimited requests no lifetime limit or no timeout, if the server allows that.
const Unlimited time.Duration = -1

// maxReply bounds a single reply; streams are bounded per message.
const maxReply = 32 << 20

// Client is a connection to one server. It is safe for concurrent use.
type Client struct {
	conn        *grpc.ClientConn
	stub        sandboxv1.SandboxServiceClient
	address     string
	tls         bool
	template    string
	retryWindow time.Duration
	// reached is true once the server has answered a call. Before that, a failure to
	// connect more likely means a wrong address than a restart.
	reached atomic.Bool
	closing sync.Once
	closed  chan struct{} // closed by Close
}

// NewClient connects to the server that the options name, else the environment
// (SANDGATE_ADDRESS, SANDGATE_TOKEN, SANDGATE_TOKEN_FILE, SANDGATE_CA_FILE,
// SANDGATE_CERT_FILE, SANDGATE_KEY_FILE, SANDGATE_TEMPLATE), else [DefaultAddress]. It
// fails if the configuration is unusable; the first call opens the connection.
func NewClient(_ context.Context, opts ...Option) (*Client, error) {
	c, err := newConfig(os.Getenv, opts)
	if err != nil {
		return nil, err
	}
	e, err := parseAddress(c.address)
	if err != nil {
		return nil, err
	}
	creds, err := c.transport(e)
	if err != nil {
		return nil, err
	}
	client := &Client{address: c.address, tls: c.speaksTLS(e), template: c.template, retryWindow: c.retryWindow, closed: make(chan struct{})}
	headers := c.headers()
	if source := c.tokenSource; source != nil {
		headers.token = func(ctx context.Context) (string, error) { return client.token(ctx, source) }
	}
	dial := append([]grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithUserAgent("sandgate-go"),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReply)),
		// The client reconnects to a restarted server within two seconds.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		// A dead peer is detected within 40 seconds.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithChainUnaryInterceptor(client.unary(headers)),
		grpc.WithChainStreamInterceptor(client.stream(headers)),
	}, c.dial...)
	conn, err := grpc.NewClient(e.target, dial...)
	if err != nil {
		return nil, invalidAddress(c.address, err.Error())
	}
	client.conn, client.stub = conn, sandboxv1.NewSandboxServiceClient(conn)
	return client, nil
}

// ServerInfo describes the server: its version, capabilities and enforcement, and the
// caller's identity.
func (c *Client) ServerInfo(ctx context.Context) (*ServerInfo, error) {
	return c.stub.GetServerInfo(ctx, &sandboxv1.GetServerInfoRequest{})
}

// CreateRequest describes a sandbox. The zero value is one with a new id from the
// default template.
type CreateRequest struct {
	// ID chosen by the caller. The same id with the same spec returns the same
	// sandbox, so that a repeated call is safe. Empty: the client generates one.
	ID string
	// Template by name. Default: that of [WithTemplate], else "default".
	Template string
	// Spec holds what differs from the template; nil: nothing.
	Spec *Spec
	// Labels to find it by.
	Labels map[string]string
	// TTL is the lifetime from creation, IdleTTL that from the last activity.
	// 0: the server's default. [Unlimited]: none.
	TTL, IdleTTL time.Duration
	// ProviderOptions are options of one provider, where the template allows
	// them.
	ProviderOptions *structpb.Struct
}

// Create returns a sandbox in which a command can run, and whether this call created
// it (false: it existed already). The handle sends its incarnation with every call:
// see [Sandbox.Incarnation].
func (c *Client) Create(ctx context.Context, r CreateRequest) (*Sandbox, bool, error) {
	// A generated id makes a retry after a lost reply safe, and no other caller has it:
	// a sandbox that the retry finds was created by the first attempt.
	own := r.ID == ""
	if own {
		r.ID = "sb-" + newID()
	}
	reply, err := c.stub.CreateSandbox(ctx, &sandboxv1.CreateSandboxRequest{
		SandboxId:       r.ID,
		Template:        cmp.Or(r.Template, c.template),
		Spec:            r.Spec,
		Labels:          r.Labels,
		Ttl:             duration(r.TTL),
		IdleTtl:         duration(r.IdleTTL),
		ProviderOptions: r.ProviderOptions,
	})
	if err != nil {
		return nil, false, err
	}
	return c.sandbox(reply.GetSandbox()), own || reply.GetCreated(), nil
}

// Get returns an existing sandbox, with its incarnation.
func (c *Client) Get(ctx context.Context, id string) (*Sandbox, error) {
	reply, err := c.stub.GetSandbox(ctx, &sandboxv1.GetSandboxRequest{SandboxId: id})
	if err != nil {
		return nil, err
	}
	return c.sandbox(reply.GetSandbox()), nil
}

// ListRequest selects sandboxes. The zero value selects all of the caller's.
type ListRequest struct {
	// Labels that a sandbox must have, all of them.
	Labels map[string]string
	// States, one of which it must be in. Empty: any.
	States []State
	// PageSize is how many are fetched at once, at most 1 000. 0: 100.
	PageSize int32
	// PageToken is [SandboxPage.NextPageToken] of the previous page, with the same labels
	// and states. Empty: the first page.
	PageToken string
}

// SandboxPage is a part of a list.
type SandboxPage struct {
	// Sandboxes may be empty although more pages follow.
	Sandboxes []*Info
	// NextPageToken is for [ListRequest.PageToken]. Empty: this was the last page.
	NextPageToken string
}

// List yields sandboxes and fetches pages as needed. After an error it ends.
func (c *Client) List(ctx context.Context, r ListRequest) iter.Seq2[*Info, error] {
	return func(yield func(*Info, error) bool) {
		from := r // so that the sequence can be used again
		for {
			page, err := c.ListPage(ctx, from)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, info := range page.Sandboxes {
				if !yield(info, nil) {
					return
				}
			}
			if from.PageToken = page.NextPageToken; from.PageToken == "" {
				return
			}
		}
	}
}

// ListPage returns one page. It fails with [ErrInvalidRequest] if the token is
// malformed, or expired (PAGE_TOKEN_EXPIRED): start again without one.
func (c *Client) ListPage(ctx context.Context, r ListRequest) (SandboxPage, error) {
	reply, err := c.stub.ListSandboxes(ctx, &sandboxv1.ListSandboxesRequest{
		Labels: r.Labels, States: r.States, PageSize: r.PageSize, PageToken: r.PageToken,
	})
	return SandboxPage{Sandboxes: reply.GetSandboxes(), NextPageToken: reply.GetNextPageToken()}, err
}

// UpdateRequest changes a sandbox. Fields that are not set stay as they are.
type UpdateRequest struct {
	// SetLabels are set, RemoveLabels are removed.
	SetLabels    map[string]string
	RemoveLabels []string
	// TTL and IdleTTL as in [CreateRequest]; 0: as they are.
	TTL, IdleTTL time.Duration
	// Renew counts as activity.
	Renew bool
	// Network has new rules in Allow, which replace the old ones; its Mode stays
	// unset. No rules: the template's.
	Network *Network
}

// Update changes labels, lifetimes and network rules. A change counts as activity.
func (c *Client) Update(ctx context.Context, id string, r UpdateRequest) (*Info, error) {
	reply, err := c.stub.UpdateSandbox(ctx, &sandboxv1.UpdateSandboxRequest{
		SandboxId:    id,
		SetLabels:    r.SetLabels,
		RemoveLabels: r.RemoveLabels,
		Ttl:          duration(r.TTL),
		IdleTtl:      duration(r.IdleTTL),
		Renew:        r.Renew,
		Network:      r.Network,
	})
	return reply.GetSandbox(), err
}

// Delete deletes a sandbox and everything in it. It returns false, without an error,
// if no such sandbox exists.
func (c *Client) Delete(ctx context.Context, id string) (bool, error) {
	reply, err := c.stub.DeleteSandbox(ctx, &sandboxv1.DeleteSandboxRequest{SandboxId: id, AllowMissing: true})
	return reply.GetDeleted(), err
}

// CleanupRequest selects the sandboxes to delete.
type CleanupRequest struct {
	// MaxIdle selects sandboxes that have been idle for longer. 0: only expired ones.
	MaxIdle time.Duration
	// Labels that a sandbox must have, all of them.
	Labels map[string]string
	// DryRun reports what would be deleted and deletes nothing.
	DryRun bool
}

// Cleanup deletes sandboxes that have been idle.
func (c *Client) Cleanup(ctx context.Context, r CleanupRequest) (*Cleaned, error) {
	return c.stub.CleanupSandboxes(ctx, &sandboxv1.CleanupSandboxesRequest{
		MaxIdle: duration(r.MaxIdle), Labels: r.Labels, DryRun: r.DryRun,
	})
}

// PoolStatus counts the sandboxes that are started ahead of time for a template. Empty:
// the template of [Client.Create].
func (c *Client) PoolStatus(ctx context.Context, template string) (*PoolStatus, error) {
	return c.stub.GetPoolStatus(ctx, &sandboxv1.GetPoolStatusRequest{Template: cmp.Or(template, c.template)})
}

// Sandbox returns a handle of the sandbox with this id, in any incarnation, without a
// call to the server.
func (c *Client) Sandbox(id string) *Sandbox { return &Sandbox{client: c, id: id} }

// Suspend stops a sandbox's processes and keeps its disk, as far as the provider can.
// It fails with [ErrUnsupported] if the provider cannot suspend.
func (c *Client) Suspend(ctx context.Context, id string) (*Info, error) {
	reply, err := c.stub.SuspendSandbox(ctx, &sandboxv1.SuspendSandboxRequest{SandboxId: id})
	return reply.GetSandbox(), err
}

// Resume resumes a suspended sandbox, as a new incarnation. It returns when a command
// can run.
func (c *Client) Resume(ctx context.Context, id string) (*Info, error) {
	reply, err := c.stub.ResumeSandbox(ctx, &sandboxv1.ResumeSandboxRequest{SandboxId: id})
	return reply.GetSandbox(), err
}

// Close closes the connection. Calls in flight, retries included, fail at once with
// [ErrCallCancelled], and so do later calls. Running commands continue for their grace
// period. Further calls of Close do nothing.
func (c *Client) Close() error {
	var err error
	c.closing.Do(func() {
		close(c.closed)
		err = c.conn.Close()
	})
	return err
}

// isClosed reports whether Close was called.
func (c *Client) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

// token calls a token source, with a context that also ends when the client is closed.
func (c *Client) token(ctx context.Context, source func(context.Context) (string, error)) (string, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-c.closed:
			cancel(closedError())
		case <-done:
		}
	}()
	token, err := source(ctx)
	if err != nil && c.isClosed() {
		return "", closedError()
	}
	return token, err
}

// sandbox returns a handle for this incarnation.
func (c *Client) sandbox(info *Info) *Sandbox {
	return &Sandbox{client: c, id: info.GetSandboxId(), Incarnation: info.GetIncarnation(), created: info}
}

// duration returns nil for 0, which is the server's default, and 0 for a negative
// duration, which is no limit.
func duration(d time.Duration) *durationpb.Duration {
	switch {
	case d == 0:
		return nil
	case d < 0:
		return &durationpb.Duration{}
	}
	return durationpb.New(d)
}
