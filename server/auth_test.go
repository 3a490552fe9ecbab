package server

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/sandgate/sandgate/agent/protocol"
	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/names"
	"github.com/sandgate/sandgate/server/wire"
)

// twoTenants returns a server with tokens, and a context for each tenant.
func twoTenants(t *testing.T) (h *harness, one, two context.Context) {
	t.Helper()
	path, tokens := tokensOf(t, "one", "two")
	as := func(tenant string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+tokens[tenant])
	}
	h = newHarness(t, func(c *Config) { useTokens(t, c, path) })
	return h, as("one"), as("two")
}

func TestOnlyValidCredentialsAreAccepted(t *testing.T) {
	h, one, _ := twoTenants(t)
	bad := func(value string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "authorization", value)
	}
	for name, ctx := range map[string]context.Context{
		"none": t.Context(), "wrong": bad("Bearer sgt_wrong"), "empty": bad("Bearer "), "no scheme": bad("sgt_x"),
		"two": metadata.AppendToOutgoingContext(one, "authorization", "Bearer sgt_wrong"),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.client.ListSandboxes(ctx, &sandboxv1.ListSandboxesRequest{})
			wantReason(t, err, "CREDENTIALS_INVALID")
			stream, err := h.client.Execute(ctx, &sandboxv1.ExecuteRequest{})
			if err == nil {
				_, err = stream.Recv()
			}
			wantReason(t, err, "CREDENTIALS_INVALID")
			reflect, err := reflectionv1.NewServerReflectionClient(h.conn).ServerReflectionInfo(ctx)
			if err == nil {
				_, err = reflect.Recv()
			}
			wantReason(t, err, "CREDENTIALS_INVALID")
		})
	}
	info, err := h.client.GetServerInfo(one, &sandboxv1.GetServerInfoRequest{})
	if err != nil || info.GetPrincipal().GetName() != "user-one" || info.GetPrincipal().GetTenant() != "one" {
		t.Fatalf("%v %v", info, err)
	}
	if _, err := healthv1.NewHealthClient(h.conn).Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil {
		t.Fatalf("health must need no credentials: %v", err)
	}
}

// Two tenants' equal ids are two sandboxes, and neither finds the other's.
func TestTenantsDoNotFindEachOthersSandboxes(t *testing.T) {
	h, one, two := twoTenants(t)
	for _, ctx := range []context.Context{one, two} {
		if _, err := h.client.CreateSandbox(ctx, &sandboxv1.CreateSandboxRequest{SandboxId: "thread-1"}); err != nil {
			t.Fatal(err)
		}
	}
	first, err := h.client.GetSandbox(one, &sandboxv1.GetSandboxRequest{SandboxId: "thread-1"})
	if err != nil {
		t.Fatal(err)
	}
	second, err := h.client.GetSandbox(two, &sandboxv1.GetSandboxRequest{SandboxId: "thread-1"})
	if err != nil {
		t.Fatal(err)
	}
	if first.GetSandbox().GetIncarnation() == second.GetSandbox().GetIncarnation() {
		t.Fatal("two tenants share a sandbox")
	}
	if _, err := h.client.CreateSandbox(one, &sandboxv1.CreateSandboxRequest{SandboxId: "mine"}); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"get":    call1(h.client.GetSandbox(two, &sandboxv1.GetSandboxRequest{SandboxId: "mine"})),
		"delete": call1(h.client.DeleteSandbox(two, &sandboxv1.DeleteSandboxRequest{SandboxId: "mine"})),
		"update": call1(h.client.UpdateSandbox(two, &sandboxv1.UpdateSandboxRequest{SandboxId: "mine", Renew: true})),
		"stat":   call1(h.client.StatFile(two, &sandboxv1.StatFileRequest{SandboxId: "mine", Path: "/x"})),
		"ps":     call1(h.client.ListProcesses(two, &sandboxv1.ListProcessesRequest{SandboxId: "mine"})),
	} {
		t.Run(name, func(t *testing.T) { wantReason(t, err, "SANDBOX_NOT_FOUND") })
	}
	list, err := h.client.ListSandboxes(two, &sandboxv1.ListSandboxesRequest{})
	if err != nil || len(list.GetSandboxes()) != 1 {
		t.Fatalf("%v %v", list, err)
	}
	gone, err := h.client.CleanupSandboxes(two, &sandboxv1.CleanupSandboxesRequest{MaxIdle: wire.Duration(time.Nanosecond)})
	if err != nil || len(gone.GetDeletedSandboxIds()) != 1 {
		t.Fatalf("%v %v", gone, err)
	}
	if _, err := h.client.GetSandbox(one, &sandboxv1.GetSandboxRequest{SandboxId: "thread-1"}); err != nil {
		t.Fatalf("cleanup of one tenant reached another: %v", err)
	}
}

func call1[M any](_ M, err error) error { return err }

func TestUnknownMethod(t *testing.T) {
	h := newHarness(t, nil)
	err := h.conn.Invoke(t.Context(), "/sandbox.v1.SandboxService/WatchFiles", &sandboxv1.GetServerInfoRequest{}, &sandboxv1.GetServerInfoResponse{})
	wantReason(t, err, "FEATURE_UNSUPPORTED")
}

func TestMessageTooLarge(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Limits.MaxMessageBytes = 64 << 10 })
	h.create("a")
	for _, size := range []int{65 << 10, 79 << 10, 81 << 10, 20 << 20} {
		content := make([]byte, size)
		_, wrote := h.client.WriteFile(t.Context(), &sandboxv1.WriteFileRequest{SandboxId: "a", Path: "/x", Content: content})
		_, executed := h.execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a", Stdin: content})
		for _, err := range []error{wrote, executed} {
			if size > protocol.Received(64<<10) {
				// It is not received: gRPC answers.
				if status.Code(err) != codes.ResourceExhausted {
					t.Errorf("%d bytes: %v", size, err)
				}
				continue
			}
			wantReason(t, err, "MESSAGE_TOO_LARGE")
			if metadataOf(t, err)["limit_bytes"] != "65536" {
				t.Errorf("%d bytes: metadata %v", size, metadataOf(t, err))
			}
		}
	}
}

func TestRequestID(t *testing.T) {
	h := newHarness(t, nil)
	for sent, want := range map[string]string{"abc-1": "abc-1", "with space": "", "": ""} {
		ctx := t.Context()
		if sent != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "x-request-id", sent)
		}
		var header metadata.MD
		_, err := h.client.GetSandbox(ctx, &sandboxv1.GetSandboxRequest{SandboxId: "none"}, grpc.Header(&header))
		if status.Code(err) != codes.NotFound {
			t.Fatal(err)
		}
		got := header.Get("x-request-id")
		if len(got) != 1 || got[0] == "" || (want != "" && got[0] != want) || got[0] == "with space" {
			t.Errorf("%q: got %q", sent, got)
		}
	}
}

// A panic in a handler is one caller's INTERNAL, not the server's end.
func TestPanicOfAHandlerIsInternalForItsCallerOnly(t *testing.T) {
	h := newHarness(t, func(c *Config) {
		c.Provider.(*scriptedProvider).before = func(_ context.Context, method, name string) error {
			if method == "create" && name == names.Substrate(call.DefaultTenant, "b") {
				panic(method)
			}
			return nil
		}
	})
	h.create("a")
	_, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "b"})
	wantReason(t, err, "INTERNAL")
	if _, err := h.client.GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: "a"}); err != nil {
		t.Fatal(err)
	}
}
