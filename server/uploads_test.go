package server

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/server/authn"
)

// changingTenant authenticates each call as a user of the tenant that was stored last.
func changingTenant(first string) (*atomic.Value, authn.Authenticator) {
	var tenant atomic.Value
	tenant.Store(first)
	return &tenant, changing{func() (authn.Principal, error) {
		return authn.Principal{Name: "ann", Tenant: tenant.Load().(string), Role: authn.RoleUser}, nil
	}}
}

// The uploads at a time of a server are bounded, and a tenant has a quarter of them. Each
// that ends, for whatever reason, makes room for another.
func TestUploadsAreBoundedPerTenant(t *testing.T) {
	tenant, authenticator := changingTenant("team")
	h := newHarness(t, func(c *Config) {
		c.Limits.MaxUploads = 8
		c.Timing.Recheck = time.Hour
		c.Authenticator = authenticator
	})
	first := header(&sandboxv1.UploadHeader{SandboxId: "a", Path: "/x"})
	all := []*sandboxv1.UploadRequest{first, chunk(1), trailer()}
	// begin returns once the upload has its slot, before it has sent a message.
	begin := func(ctx context.Context) sandboxv1.SandboxService_UploadClient {
		t.Helper()
		before, _ := h.server.uploads.Used()
		stream, err := h.client.Upload(ctx)
		if err != nil {
			t.Fatal(err)
		}
		h.until("the upload has its slot", func() bool { taken, _ := h.server.uploads.Used(); return taken > before })
		return stream
	}
	h.create("a")
	ctx, cancel := context.WithCancelCause(t.Context())
	begin(ctx)
	second := begin(t.Context())
	_, err := h.upload()
	wantReason(t, err, "QUOTA_EXCEEDED")
	if got, want := metadataOf(t, err), map[string]string{"quota": "max_uploads", "scope": "tenant", "limit": "2", "used": "2"}; !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
	t.Log(status.Convert(err).Message())

	tenant.Store("other")
	h.create("a")
	for range 2 {
		_, err = h.upload(header(&sandboxv1.UploadHeader{SandboxId: "none", Path: "/x"}))
		wantReason(t, err, "SANDBOX_NOT_FOUND")
		_, err = h.upload(first, chunk(0))
		wantReason(t, err, "UPLOAD_OUT_OF_ORDER")
		if _, err := h.upload(all...); err != nil {
			t.Error(err)
		}
	}
	// Whoever has slots: the others of the server are taken.
	for _, name := range []string{"other", "third", "fourth"} {
		tenant.Store(name)
		begin(t.Context())
		begin(t.Context())
	}
	tenant.Store("fifth")
	_, err = h.upload()
	wantReason(t, err, "QUOTA_EXCEEDED")
	if got, want := metadataOf(t, err), map[string]string{"quota": "max_uploads", "scope": "server", "limit": "8", "used": "8"}; !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}

	tenant.Store("team")
	if err := second.Send(first); err != nil {
		t.Fatal(err)
	}
	if _, err := second.CloseAndRecv(); err != nil {
		t.Fatal(err)
	}
	h.until("there is room after an upload", func() bool { _, err := h.upload(all...); return err == nil })
	begin(t.Context())
	cancel(nil)
	h.until("there is room after a cancelled upload", func() bool { _, err := h.upload(all...); return err == nil })
}

// 300 small files at once from one tenant succeed without any configuration.
func TestManyUploadsOfOneTenant(t *testing.T) {
	_, authenticator := changingTenant("team")
	h := newHarness(t, func(c *Config) { c.Authenticator = authenticator })
	h.create("a")
	var all sync.WaitGroup
	for i := range 300 {
		all.Go(func() {
			if _, err := h.upload(header(&sandboxv1.UploadHeader{SandboxId: "a", Path: fmt.Sprint("/", i)}), chunk(4<<10), trailer()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}
