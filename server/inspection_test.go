package server

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/names"
)

// roleOf authenticates everybody as a role of the default tenant.
type roleOf struct{ role *atomic.Int64 }

func (roleOf) Name() string { return "roles" }
func (r roleOf) Authenticate(context.Context) (authn.Principal, error) {
	return authn.Principal{Tenant: call.DefaultTenant, Name: "someone", Role: authn.Role(r.role.Load())}, nil
}

// The calls of a reader, and those that list processes, leave a sandbox as idle as it
// was. Those of a user do not.
func TestReadersRenewNothing(t *testing.T) {
	var role atomic.Int64 // RoleUser
	h := newHarness(t, func(c *Config) { c.Authenticator = roleOf{&role} })
	list := func() error {
		_, err := h.client.ListProcesses(t.Context(), &sandboxv1.ListProcessesRequest{SandboxId: "a"})
		return err
	}
	stat := func() error {
		_, err := h.client.StatFile(t.Context(), &sandboxv1.StatFileRequest{SandboxId: "a", Path: "/"})
		return err
	}
	download := func() error {
		stream, err := h.client.Download(t.Context(), &sandboxv1.DownloadRequest{SandboxId: "a", Items: []*sandboxv1.DownloadItem{{Path: "/dev/null"}}})
		for err == nil {
			_, err = stream.Recv()
		}
		return answered(err)
	}
	attach := func() error {
		stream, err := h.client.Attach(t.Context(), &sandboxv1.AttachRequest{SandboxId: "a", ExecId: "ended"})
		for err == nil {
			_, err = stream.Recv()
		}
		return answered(err)
	}
	h.createFor("a", time.Hour)
	for name, c := range map[string]struct {
		role  authn.Role
		make  func() error
		renew bool
	}{
		"reader stat": {authn.RoleReader, stat, false}, "reader download": {authn.RoleReader, download, false},
		"reader attach": {authn.RoleReader, attach, false}, "reader list": {authn.RoleReader, list, false},
		"user list": {authn.RoleUser, list, false}, "operator list": {authn.RoleOperator, list, false},
		"user stat": {authn.RoleUser, stat, true}, "user download": {authn.RoleUser, download, true},
		"user attach": {authn.RoleUser, attach, true},
	} {
		t.Run(name, func(t *testing.T) {
			h.age("a", 30*time.Minute)
			key := agentconn.Key{Tenant: call.DefaultTenant, ID: "a", Name: names.Substrate(call.DefaultTenant, "a")}
			conn, err := h.server.agents.Inspect(t.Context(), key, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.EndInspection()
			before := conn.LastCall()
			role.Store(int64(c.role))
			err = c.make()
			role.Store(int64(authn.RoleUser))
			if err != nil {
				t.Fatal(err)
			}
			if renewed := conn.LastCall() != before; renewed != c.renew {
				t.Errorf("renewed: %v, want %v", renewed, c.renew)
			}
			if conn.InUse() {
				t.Error("it is still in use")
			}
			resp, err := h.client.CleanupSandboxes(t.Context(),
				&sandboxv1.CleanupSandboxesRequest{MaxIdle: durationpb.New(20 * time.Minute), DryRun: true})
			if err != nil || len(resp.GetDeletedSandboxIds()) == 1 == c.renew {
				t.Errorf("a cleanup would delete %v, %v", resp.GetDeletedSandboxIds(), err)
			}
		})
	}
}

// answered returns nil for an answer of the scripted agent, which has no files and
// keeps no commands.
func answered(err error) error {
	if code := status.Code(err); errors.Is(err, io.EOF) || code == codes.Unimplemented || code == codes.NotFound {
		return nil
	}
	return err
}
