package server

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/audit"
	"github.com/sandgate/sandgate/server/authn"
)

// changing authenticates by a function that the test replaces.
type changing struct {
	check func() (authn.Principal, error)
}

func (changing) Name() string { return "changing" }
func (c changing) Authenticate(ctx context.Context) (authn.Principal, error) {
	if _, ok := peer.FromContext(ctx); !ok {
		return authn.Principal{}, errors.New("no peer")
	}
	return c.check()
}

// auditList keeps records.
type auditList chan audit.Record

// Audit records the ends of calls.
func (a auditList) Audit(_ context.Context, r audit.Record) error {
	if r.Phase != audit.Started {
		a <- r
	}
	return nil
}

// A refused call is recorded whatever its size, without a tenant, and answered
// with a reason.
func TestRefusedCallsAreRecorded(t *testing.T) {
	records := make(auditList, 10)
	addr, _ := tcpHarness(t, func(c *Config) { c.Audit = records })
	conn := dialServer(t, addr, insecure.NewCredentials(),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(64<<20)))
	for _, size := range []int{10, 40 << 20} {
		_, err := sandboxv1.NewSandboxServiceClient(conn).WriteFile(t.Context(),
			&sandboxv1.WriteFileRequest{SandboxId: "a", Path: "/x", Content: make([]byte, size)})
		if code, got := reason(t, err); code != codes.Unauthenticated || got != "CREDENTIALS_INVALID" {
			t.Fatalf("%d bytes: %v", size, err)
		}
		r := <-records
		if r.Operation != "WriteFile" || r.Code != "Unauthenticated" || r.Reason != "CREDENTIALS_INVALID" || r.Tenant != "" {
			t.Errorf("%d bytes: %+v", size, r)
		}
	}
}

// A name that a caller invents reaches no metric, and not the audit log.
func TestUnknownMethodsHaveOneName(t *testing.T) {
	records := make(auditList, 1)
	addr, _ := tcpHarness(t, func(c *Config) { c.Audit = records })
	conn := dialServer(t, addr, insecure.NewCredentials())
	err := conn.Invoke(t.Context(), "/sandbox.v1.SandboxService/Invented", &sandboxv1.GetServerInfoRequest{}, &sandboxv1.GetServerInfoResponse{})
	wantReason(t, err, "CREDENTIALS_INVALID")
	if r := <-records; r.Operation != "unknown" {
		t.Errorf("%+v", r)
	}
}

// Health needs no credentials, and a connection has a few such calls at once.
func TestHealthCallsPerConnectionAreBounded(t *testing.T) {
	addr, _ := tcpHarness(t, nil)
	conn := dialServer(t, addr, insecure.NewCredentials())
	const maxHealthCalls = 8
	client := healthv1.NewHealthClient(conn)
	for i := range maxHealthCalls + 1 {
		h, err := client.Watch(t.Context(), &healthv1.HealthCheckRequest{})
		if err == nil {
			_, err = h.Recv()
		}
		if (i == maxHealthCalls) != (status.Code(err) == codes.ResourceExhausted) || i < maxHealthCalls && err != nil {
			t.Fatalf("watch %d: %v", i, err)
		}
	}
}

// A stream ends when its caller's credentials do, whatever it waits for.
func TestRevokedCredentialsEndStreams(t *testing.T) {
	for name, start := range map[string]func(context.Context, sandboxv1.SandboxServiceClient) (func() error, error){
		"a silent command": func(ctx context.Context, c sandboxv1.SandboxServiceClient) (func() error, error) {
			stream, err := c.Execute(ctx, &sandboxv1.ExecuteRequest{SandboxId: "a", Command: &sandboxv1.ExecuteRequest_Shell{Shell: "x"}})
			if err == nil {
				_, err = stream.Recv()
			}
			return func() error { return call1(stream.Recv()) }, err
		},
		"an upload that pauses": func(ctx context.Context, c sandboxv1.SandboxServiceClient) (func() error, error) {
			stream, err := c.Upload(ctx)
			if err == nil {
				err = stream.Send(&sandboxv1.UploadRequest{Payload: &sandboxv1.UploadRequest_Header{
					Header: &sandboxv1.UploadHeader{SandboxId: "a", Path: "/x"}}})
			}
			return func() error { return stream.RecvMsg(new(sandboxv1.UploadResponse)) }, err
		},
	} {
		for change, after := range map[string]func() (authn.Principal, error){
			"revoked":      func() (authn.Principal, error) { return authn.Principal{}, authn.ErrUnknownCredentials },
			"other tenant": func() (authn.Principal, error) { return authn.Principal{Name: "ann", Tenant: "red"}, nil },
			"other role": func() (authn.Principal, error) {
				return authn.Principal{Name: "ann", Tenant: "blue", Role: authn.RoleReader}, nil
			},
			"revoked elsewhere": func() (authn.Principal, error) {
				return authn.Principal{}, &authn.Pending{Wait: func(context.Context) (authn.Principal, error) {
					return authn.Principal{}, authn.ErrUnknownCredentials
				}}
			},
		} {
			t.Run(name+"/"+change, func(t *testing.T) {
				valid := func() (authn.Principal, error) { return authn.Principal{Name: "ann", Tenant: "blue"}, nil }
				revoke := make(chan struct{})
				began := make(chan struct{}, 2)
				h := newHarness(t, func(c *Config) {
					c.Timing.Recheck = 10 * time.Millisecond
					c.Authenticator = changing{func() (authn.Principal, error) {
						select {
						case <-revoke:
							return after()
						default:
							return valid()
						}
					}}
				})
				h.provider.script.execute = func(_ *scriptedAgent, _ *sandboxv1.ExecuteRequest, out emitter) error {
					err := out.started(0)
					began <- struct{}{}
					<-out.stream.Context().Done()
					return err
				}
				h.provider.script.upload = func(in grpc.ClientStreamingServer[sandboxv1.UploadRequest, sandboxv1.UploadResponse]) error {
					began <- struct{}{}
					<-in.Context().Done()
					return in.Context().Err()
				}
				h.create("a")
				ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "x", "y"), 30*time.Second)
				defer cancel()
				recv, err := start(ctx, h.client)
				if err != nil {
					t.Fatal(err)
				}
				<-began
				close(revoke)
				err = recv()
				if code, got := reason(t, err); code != codes.Unauthenticated || got != "CREDENTIALS_INVALID" {
					t.Fatalf("got %v", err)
				}
			})
		}
	}
}

// A stream whose caller takes nothing ends as well.
func TestRevokedCredentialsEndStuckStreams(t *testing.T) {
	revoke := make(chan struct{})
	records := make(auditList, 10)
	h := newHarness(t, func(c *Config) {
		c.Audit, c.Timing.Recheck = records, 10*time.Millisecond
		c.Authenticator = changing{func() (authn.Principal, error) {
			select {
			case <-revoke:
				return authn.Principal{}, authn.ErrUnknownCredentials
			default:
				return authn.Principal{Name: "ann", Tenant: "blue"}, nil
			}
		}}
	}, grpc.WithStaticStreamWindowSize(64<<10))
	full := make(chan struct{})
	h.provider.script.execute = func(_ *scriptedAgent, _ *sandboxv1.ExecuteRequest, out emitter) error {
		err := out.started(0)
		for p := int64(0); err == nil; p += 32_000 {
			if p == 320_000 {
				close(full)
			}
			err = out.output(p, string(make([]byte, 32_000)))
		}
		return nil
	}
	h.create("a")
	<-records
	stream, err := h.client.Execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a", Command: &sandboxv1.ExecuteRequest_Shell{Shell: "x"}})
	if err != nil {
		t.Fatal(err)
	}
	<-full
	close(revoke)
	if r := <-records; r.Operation != "Execute" || r.Reason != "CREDENTIALS_INVALID" {
		t.Errorf("%+v", r)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if code := status.Code(err); code != codes.Canceled && code != codes.Unauthenticated {
		t.Errorf("got %v", err)
	}
}
