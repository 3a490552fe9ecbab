package server

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/authn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/events"
	"github.com/sandgate/sandgate/server/names"
)

// watch begins a watch and returns it with its first cursor.
func (h *harness) watch(ctx context.Context, req *sandboxv1.WatchSandboxesRequest) (grpc.ServerStreamingClient[sandboxv1.WatchSandboxesResponse], string) {
	h.t.Helper()
	stream, err := h.client.WatchSandboxes(ctx, req)
	if err != nil {
		h.t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil || first.GetEvent() != nil || first.GetCursor() == "" || len(first.GetCursor()) > 128 {
		h.t.Fatalf("first: %v, %v", first, err)
	}
	return stream, first.GetCursor()
}

// expectEvent receives the next event, such as "a CREATED REQUESTED".
func expectEvent(t *testing.T, stream grpc.ServerStreamingClient[sandboxv1.WatchSandboxesResponse], want string) (*sandboxv1.SandboxEvent, string) {
	t.Helper()
	m, err := stream.Recv()
	if err != nil {
		t.Fatalf("%s: %v", want, err)
	}
	e := m.GetEvent()
	got := fmt.Sprintf("%s %s %s", e.GetSandboxId(), strings.TrimPrefix(e.GetType().String(), "EVENT_TYPE_"), strings.TrimPrefix(e.GetReason().String(), "EVENT_REASON_"))
	if got != want || e.GetEventId() == "" || !e.GetTime().IsValid() || m.GetCursor() == "" {
		t.Fatalf("got %q (%v), want %q", got, m, want)
	}
	return e, m.GetCursor()
}

// several is a provider with a ledger, which servers share.
type several struct {
	resumer
	documents events.Change
	down      *atomic.Bool // the ledger
}

func newSeveral(t *testing.T) several {
	p := newScriptedProvider(t)
	return several{resumer{p}, events.Documents(p), new(atomic.Bool)}
}

func (s several) ChangeLedger(ctx context.Context, name string, change func([]byte) ([]byte, error)) error {
	if s.down.Load() {
		return providers.ErrUnavailable
	}
	return s.documents(ctx, name, change)
}

// harness returns a server on the provider.
func (s several) harness(t *testing.T, change func(*Config)) *harness {
	h := newHarness(t, func(c *Config) {
		c.Provider = s
		if change != nil {
			change(c)
		}
	})
	h.provider.stop()
	h.provider = s.scriptedProvider
	return h
}

// A watch has what callers, the reaper and the substrate do, and continues from a
// cursor on another server.
func TestWatch(t *testing.T) {
	s := newSeveral(t)
	h := s.harness(t, nil)
	all, _ := h.watch(t.Context(), &sandboxv1.WatchSandboxesRequest{})
	ends, _ := h.watch(t.Context(), &sandboxv1.WatchSandboxesRequest{
		Labels: map[string]string{"k": "v"}, Templates: []string{"default"}, Types: []sandboxv1.EventType{sandboxv1.EventType_EVENT_TYPE_ENDED},
	})
	_, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "a", Labels: map[string]string{"k": "v"}})
	if err != nil {
		t.Fatal(err)
	}
	created, cursor := expectEvent(t, all, "a CREATED REQUESTED")
	if created.GetLabels()["k"] != "v" || created.GetTemplate() != "default" || created.GetState() != sandboxv1.SandboxState_SANDBOX_STATE_ACTIVE || created.GetIncarnation() == "" {
		t.Errorf("%v", created)
	}
	if _, err := h.client.SuspendSandbox(t.Context(), &sandboxv1.SuspendSandboxRequest{SandboxId: "a"}); err != nil {
		t.Fatal(err)
	}
	expectEvent(t, all, "a STATE_CHANGED REQUESTED")
	h.create("b")
	expectEvent(t, all, "b CREATED REQUESTED")
	if _, err := h.client.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: "a"}); err != nil {
		t.Fatal(err)
	}
	expectEvent(t, all, "a ENDED REQUESTED")
	expectEvent(t, ends, "a ENDED REQUESTED")

	// Another server looks more often, but not so often that its observer may forestall
	// what it has noted itself.
	other := s.harness(t, func(c *Config) { c.Timing.ReapInterval = 500 * time.Millisecond })
	again, _ := other.watch(t.Context(), &sandboxv1.WatchSandboxesRequest{Cursor: cursor})
	expectEvent(t, again, "a STATE_CHANGED REQUESTED")
	expectEvent(t, again, "b CREATED REQUESTED")
	expectEvent(t, again, "a ENDED REQUESTED")
	// One that exists since before the journal expires.
	s.mu.Lock()
	old := s.add(names.Substrate(call.DefaultTenant, "old"), providers.Spec{Tenant: call.DefaultTenant, ID: "old", TTL: time.Hour})
	old.info.CreateTime = time.Now().Add(-56 * time.Minute)
	s.mu.Unlock()
	for _, watch := range []grpc.ServerStreamingClient[sandboxv1.WatchSandboxesResponse]{again, all} {
		if e, _ := expectEvent(t, watch, "old EXPIRING TTL"); !e.GetExpireTime().AsTime().Equal(old.info.CreateTime.Add(time.Hour)) {
			t.Errorf("%v", e)
		}
	}
	s.mu.Lock()
	old.info.Spec.TTL = 55 * time.Minute
	s.mu.Unlock()
	expectEvent(t, again, "old ENDED TTL")
	// One is lost.
	s.mu.Lock()
	lost := s.sandboxes[names.Substrate(call.DefaultTenant, "b")]
	delete(s.sandboxes, lost.info.Name)
	s.mu.Unlock()
	lost.server.Stop()
	expectEvent(t, again, "b ENDED UNSPECIFIED")
}

// A caller's watch has the sandboxes of its tenant and its scope alone.
func TestWatchTenants(t *testing.T) {
	who := func(ctx context.Context) authn.Principal {
		p := authn.Principal{Name: "ann", Tenant: "blue", Role: authn.RoleUser}
		switch v := metadata.ValueFromIncomingContext(ctx, "as"); {
		case slices.Contains(v, "red"):
			p = authn.Principal{Name: "bob", Tenant: "red", Role: authn.RoleUser}
		case slices.Contains(v, "narrow"):
			p = authn.Principal{Name: "ci", Tenant: "blue", Role: authn.RoleReader, Scope: authn.Scope{IDPrefix: "ci-"}}
		}
		return p
	}
	s := newSeveral(t)
	h := s.harness(t, func(c *Config) { c.Authenticator = byHeader{who} })
	as := func(name string) context.Context { return metadata.AppendToOutgoingContext(t.Context(), "as", name) }
	watches := make(map[string]grpc.ServerStreamingClient[sandboxv1.WatchSandboxesResponse])
	for _, name := range []string{"blue", "red", "narrow"} {
		watches[name], _ = h.watch(as(name), &sandboxv1.WatchSandboxesRequest{})
	}
	for _, one := range []struct{ as, id string }{{"blue", "a"}, {"red", "b"}, {"blue", "ci-1"}, {"red", "ci-2"}} {
		if _, err := h.client.CreateSandbox(as(one.as), &sandboxv1.CreateSandboxRequest{SandboxId: one.id}); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"a", "ci-1"} {
		if e, _ := expectEvent(t, watches["blue"], id+" CREATED REQUESTED"); e.GetPrincipal() != "ann" {
			t.Errorf("%v", e)
		}
	}
	for _, id := range []string{"b", "ci-2"} {
		expectEvent(t, watches["red"], id+" CREATED REQUESTED")
	}
	expectEvent(t, watches["narrow"], "ci-1 CREATED REQUESTED")
}

// byHeader authenticates by the call's metadata.
type byHeader struct {
	who func(context.Context) authn.Principal
}

func (b byHeader) Authenticate(ctx context.Context) (authn.Principal, error) { return b.who(ctx), nil }
func (byHeader) Name() string                                                { return "header" }

// A watch ends when its credentials do, and when the server stops, in spite of a
// long drain.
func TestWatchEnds(t *testing.T) {
	revoke := make(chan struct{})
	s := newSeveral(t)
	h := s.harness(t, func(c *Config) {
		c.Timing.Recheck, c.Timing.Drain = 10*time.Millisecond, time.Hour
		c.Authenticator = changing{func() (authn.Principal, error) {
			select {
			case <-revoke:
				return authn.Principal{}, authn.ErrUnknownCredentials
			default:
				return authn.Principal{Name: "ann", Tenant: "blue", Role: authn.RoleReader}, nil
			}
		}}
	})
	stream, _ := h.watch(t.Context(), &sandboxv1.WatchSandboxesRequest{})
	close(revoke)
	_, err := stream.Recv()
	if code, got := reason(t, err); code != codes.Unauthenticated || got != "CREDENTIALS_INVALID" {
		t.Fatalf("got %v", err)
	}
	stopping := s.harness(t, func(c *Config) { c.Timing.Drain = time.Hour })
	stream, _ = stopping.watch(t.Context(), &sandboxv1.WatchSandboxesRequest{})
	done := make(chan error, 1)
	go func() { done <- stopping.server.Shutdown(context.WithoutCancel(t.Context())) }()
	_, err = stream.Recv()
	if code, got := reason(t, err); code != codes.Unavailable || got != "SERVER_SHUTTING_DOWN" || !strings.Contains(err.Error(), "cursor") {
		t.Fatalf("got %v", err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A watcher that receives nothing neither delays others nor keeps the server from
// stopping.
func TestWatchStuck(t *testing.T) {
	s := newSeveral(t)
	h := s.harness(t, nil)
	stuck, _ := h.watch(t.Context(), &sandboxv1.WatchSandboxesRequest{})
	free, _ := h.watch(t.Context(), &sandboxv1.WatchSandboxesRequest{})
	labels := make(map[string]string)
	for i := range 32 {
		labels[strings.Repeat("k", 60)+strconv.Itoa(i)] = strings.Repeat("v", 63)
	}
	const n = 200 // times 4 KiB is more than the windows of a stream
	for i := range n {
		info := providers.Info{Name: strconv.Itoa(i), State: providers.StateActive, CreateTime: time.Now(),
			Spec: providers.Spec{Tenant: call.DefaultTenant, ID: strconv.Itoa(i), Labels: labels}}
		h.server.journal.Note(events.New(events.Created, info, ""))
	}
	for i := range n {
		expectEvent(t, free, fmt.Sprintf("%d CREATED UNSPECIFIED", i))
	}
	expectEvent(t, stuck, "0 CREATED UNSPECIFIED")
}

func TestWatchRequests(t *testing.T) {
	s := newSeveral(t)
	h := s.harness(t, nil)
	for name, req := range map[string]*sandboxv1.WatchSandboxesRequest{
		"cursor":    {Cursor: "x"},
		"types[1]":  {Types: []sandboxv1.EventType{sandboxv1.EventType_EVENT_TYPE_ENDED, 99}},
		"templates": {Templates: make([]string, maxWatchTemplates+1)},
		"labels":    {Labels: map[string]string{"!": ""}},
	} {
		stream, err := h.client.WatchSandboxes(t.Context(), req)
		if err == nil {
			_, err = stream.Recv()
		}
		if wantReason(t, err, "REQUEST_INVALID"); !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A journal that cannot be read is a transient error.
	s.down.Store(true)
	stream, err := h.client.WatchSandboxes(t.Context(), &sandboxv1.WatchSandboxesRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	wantReason(t, err, "PROVIDER_UNAVAILABLE")
	s.down.Store(false)
	// A cursor of another journal is no error.
	stream, _ = h.watch(t.Context(), &sandboxv1.WatchSandboxesRequest{Cursor: "1.ELSEWHERE.5"})
	expectEvent(t, stream, " RESYNC UNSPECIFIED")
	h.create("a")
	expectEvent(t, stream, "a CREATED REQUESTED")
}

// Events that the watch does not have delay none of its cursors.
func TestWatchHeartbeat(t *testing.T) {
	s := newSeveral(t)
	h := s.harness(t, func(c *Config) { c.watchHeartbeat = 3 * time.Second })
	stream, first := h.watch(t.Context(), &sandboxv1.WatchSandboxesRequest{Templates: []string{"none"}})
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			info := providers.Info{Name: strconv.Itoa(i), State: providers.StateActive, CreateTime: time.Now(), Spec: providers.Spec{Tenant: "other", ID: strconv.Itoa(i)}}
			h.server.journal.Note(events.New(events.Created, info, ""))
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	m, err := stream.Recv()
	close(stop)
	<-done
	if err != nil || m.GetEvent() != nil || m.GetCursor() == first {
		t.Errorf("%v, %v", m, err)
	}
}
