package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/fake"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/names"
	"github.com/sandgate/sandgate/server/quota"
)

// createMany creates sandboxes at the same time and returns how many were made
// and how many refused.
func createMany(t *testing.T, ctx func(i int) context.Context, client sandboxv1.SandboxServiceClient, n int, id func(i int) string) (made, refused int32) {
	t.Helper()
	var work sync.WaitGroup
	var ok, no atomic.Int32
	for i := range n {
		work.Go(func() {
			_, err := client.CreateSandbox(ctx(i), &sandboxv1.CreateSandboxRequest{SandboxId: id(i)})
			switch status.Code(err) {
			case codes.OK:
				ok.Add(1)
			case codes.ResourceExhausted:
				no.Add(1)
			default:
				t.Errorf("%s: %v", id(i), err)
			}
		})
	}
	work.Wait()
	return ok.Load(), no.Load()
}

func (h *harness) count() int {
	h.provider.mu.Lock()
	defer h.provider.mu.Unlock()
	return len(h.provider.sandboxes)
}

func TestMaxSandboxesHoldsUnderRaces(t *testing.T) {
	const limit = 50
	h := newHarness(t, func(c *Config) { c.Quotas.MaxSandboxes = limit })
	always := func(int) context.Context { return t.Context() }
	id := func(i int) string { return fmt.Sprintf("s-%d", i) }
	made, refused := createMany(t, always, h.client, 200, id)
	if made != limit || refused != 200-limit || h.count() != limit {
		t.Fatalf("%d made, %d refused, %d are there", made, refused, h.count())
	}
	var there []string
	for i := range 200 {
		if !h.gone(id(i)) {
			there = append(there, id(i))
		}
	}
	// What exists can be joined at the limit.
	if made, _ := createMany(t, always, h.client, limit, func(i int) string { return there[i] }); made != limit {
		t.Errorf("%d of %d joined", made, limit)
	}
	_, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "more"})
	wantReason(t, err, "QUOTA_EXCEEDED")
	if m := metadataOf(t, err); m["quota"] != "max_sandboxes" || m["limit"] != "50" || m["used"] != "50" {
		t.Errorf("metadata %v", m)
	}
	// A deletion makes room for one, once.
	for _, id := range there[:10] {
		if _, err := h.client.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: id}); err != nil {
			t.Fatal(err)
		}
	}
	made, refused = createMany(t, always, h.client, 40, func(i int) string { return fmt.Sprintf("again-%d", i) })
	if made != 10 || refused != 30 {
		t.Errorf("after 10 deletions %d were made, %d refused", made, refused)
	}
}

func TestMaxSandboxesPerTenant(t *testing.T) {
	h, one, two := twoTenants(t)
	h.server.book.Configure(quota.Config{MaxSandboxes: 5, Tenant: quota.Limits{MaxSandboxes: 3}})
	tenant := func(ctx context.Context) func(int) context.Context {
		return func(int) context.Context { return ctx }
	}
	id := func(i int) string { return fmt.Sprintf("s-%d", i) }
	if made, refused := createMany(t, tenant(one), h.client, 10, id); made != 3 || refused != 7 {
		t.Errorf("the first tenant: %d made, %d refused", made, refused)
	}
	if made, refused := createMany(t, tenant(two), h.client, 10, id); made != 2 || refused != 8 {
		t.Errorf("the second tenant, with room for 2 on the server: %d made, %d refused", made, refused)
	}
}

// What was created or deleted elsewhere counts before anything is refused, and a
// sandbox from elsewhere can be joined at the limit.
func TestMaxSandboxesSeesWhatOtherServersDo(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Quotas.MaxSandboxes = 2 })
	h.create("a")
	h.create("b")
	h.elsewhere("a")
	// A rejection causes a listing, of which there are few.
	h.until("the deletion is known", func() bool {
		_, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "c"})
		return err == nil
	})
	h.elsewhere("b")
	spec, err := h.server.rules().policy.Spec(call.DefaultTenant, "d", &sandboxv1.CreateSandboxRequest{SandboxId: "d"})
	if err != nil {
		t.Fatal(err)
	}
	h.provider.make(names.Substrate(call.DefaultTenant, "d"), spec)
	h.create("d")
	_, err = h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "e"})
	wantReason(t, err, "QUOTA_EXCEEDED")
}

// A creation that fails, panics or is given up is not counted.
func TestMaxSandboxesCountsNoFailures(t *testing.T) {
	var mode atomic.Int32
	h := newHarness(t, func(c *Config) {
		c.Quotas.MaxSandboxes, c.Limits.MaxCreations = 2, 1
		c.Provider.(*scriptedProvider).before = func(ctx context.Context, method, _ string) error {
			if method != "create" {
				return nil
			}
			switch mode.Load() {
			case 1:
				return providers.ErrStartFailed
			case 2:
				panic("create")
			case 3:
				<-ctx.Done()
				return context.Cause(ctx)
			}
			return nil
		}
	})
	for m := range int32(4) {
		for i := range 3 {
			if mode.Store(m); m == 0 {
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			if m == 3 {
				time.AfterFunc(10*time.Millisecond, cancel)
			}
			_, err := h.client.CreateSandbox(ctx, &sandboxv1.CreateSandboxRequest{SandboxId: fmt.Sprintf("m%d-%d", m, i)})
			cancel()
			if err == nil || status.Code(err) == codes.ResourceExhausted {
				t.Errorf("mode %d: %v", m, err)
			}
		}
	}
	mode.Store(0)
	h.until("the last one has been settled", func() bool {
		_, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "a"})
		return err == nil
	})
	h.create("b")
}

// No more creations go on at the same time than there may be, and one that
// waits ends with its caller.
func TestConcurrentCreationsAreBounded(t *testing.T) {
	const limit = 4
	var now, most atomic.Int32
	g := newGate()
	h := newHarness(t, func(c *Config) {
		c.Limits.MaxCreations = limit
		c.Provider.(*scriptedProvider).before = func(ctx context.Context, method, name string) error {
			if method != "create" {
				return nil
			}
			defer now.Add(-1)
			for n := now.Add(1); ; {
				if was := most.Load(); n <= was || most.CompareAndSwap(was, n) {
					return g.pass(ctx, name)
				}
			}
		}
	})
	var work sync.WaitGroup
	for i := range 5 * limit {
		work.Go(func() { h.create(fmt.Sprintf("s-%d", i)) })
	}
	for range limit {
		<-g.arrived
	}
	gaveUp, cancel := context.WithCancelCause(t.Context())
	waits := make(chan error, 1)
	go func() {
		_, err := h.server.CreateSandbox(gaveUp, &sandboxv1.CreateSandboxRequest{SandboxId: "waits"})
		waits <- err
	}()
	why := errors.New("the caller gave up")
	cancel(why)
	if err := <-waits; !errors.Is(err, why) {
		t.Errorf("the one that waits: %v", err)
	}
	close(g.open)
	work.Wait()
	if n := most.Load(); n != limit {
		t.Errorf("%d at the same time", n)
	}
}

// A call for an existing sandbox needs no slot for creations.
func TestGetOrCreateDoesNotWaitForCreations(t *testing.T) {
	g := newGate()
	var hold atomic.Bool
	h := newHarness(t, func(c *Config) {
		c.Limits.MaxCreations = 1
		c.Provider.(*scriptedProvider).before = func(ctx context.Context, method, name string) error {
			if method != "create" || !hold.Load() {
				return nil
			}
			return g.pass(ctx, name)
		}
	})
	first := h.create("a")
	hold.Store(true)
	var work sync.WaitGroup
	work.Go(func() { h.create("b") })
	<-g.arrived
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	resp, err := h.client.CreateSandbox(ctx, &sandboxv1.CreateSandboxRequest{SandboxId: "a"})
	if err != nil || resp.GetCreated() || resp.GetSandbox().GetIncarnation() != first.GetIncarnation() {
		t.Errorf("%v %v", resp, err)
	}
	close(g.open)
	work.Wait()
}

// twoServers returns servers on one substrate.
func twoServers(t *testing.T, tenant quota.Limits) []*harness {
	t.Helper()
	dir, err := os.MkdirTemp("", "sg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	machine := fake.NewMachine(dir, fake.Config{})
	t.Cleanup(func() {
		if err := machine.Close(); err != nil {
			t.Error(err)
		}
	})
	var servers []*harness
	for range 2 {
		p := machine.Open()
		t.Cleanup(func() { _ = p.Close() })
		servers = append(servers, newHarness(t, func(c *Config) {
			c.Provider, c.Quotas.Tenant = p, tenant
			c.Logger = slog.New(slog.DiscardHandler)
		}))
	}
	return servers
}

// Two servers on one substrate create exactly as many as a tenant may have.
func TestQuotaHoldsOverTwoServers(t *testing.T) {
	const limit, calls = 50, 200
	servers := twoServers(t, quota.Limits{MaxSandboxes: limit})
	var made, refused atomic.Int32
	var work sync.WaitGroup
	for i, h := range servers {
		work.Go(func() {
			m, r := createMany(t, func(int) context.Context { return t.Context() }, h.client, calls/2, func(k int) string { return fmt.Sprintf("s-%d-%d", i, k) })
			made.Add(m)
			refused.Add(r)
		})
	}
	work.Wait()
	if made.Load() != limit || refused.Load() != calls-limit {
		t.Errorf("%d made, %d refused", made.Load(), refused.Load())
	}
	for _, h := range servers {
		info, err := h.client.GetServerInfo(t.Context(), &sandboxv1.GetServerInfoRequest{})
		if q := info.GetQuotas(); err != nil || len(q) != 1 || q[0].GetName() != "max_sandboxes" || q[0].GetScope() != "tenant" || q[0].GetUsed() != limit || q[0].GetLimit() != limit {
			t.Errorf("%v %v", q, err)
		}
	}
}

// Each of two servers on one substrate admits as many streams as a quota has, whatever
// the other one has, and reports its own: what operations.md and "config check" state.
func TestStreamsAreCountedByEachServer(t *testing.T) {
	const limit = 3
	for _, h := range twoServers(t, quota.Limits{MaxStreams: limit, CommandsPerMinute: 100}) {
		for range limit {
			h.watch(t.Context(), &sandboxv1.WatchSandboxesRequest{})
		}
		beyond, err := h.client.WatchSandboxes(t.Context(), &sandboxv1.WatchSandboxesRequest{})
		if err == nil {
			_, err = beyond.Recv()
		}
		wantReason(t, err, "QUOTA_EXCEEDED")
		if m := metadataOf(t, err); m["quota"] != "max_streams" || m["used"] != "3" || !strings.Contains(status.Convert(err).Message(), "on this server") {
			t.Errorf("%v: %v", m, err)
		}
		info, err := h.client.GetServerInfo(t.Context(), &sandboxv1.GetServerInfoRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range info.GetQuotas() {
			if want := map[string]int64{"max_streams": limit, "commands_per_minute": 0}[q.GetName()]; q.GetUsed() != want {
				t.Errorf("%s: %d in use, want %d", q.GetName(), q.GetUsed(), want)
			}
		}
	}
}

// A stream beyond a quota is refused before it does anything, another tenant's is
// not, and one that ends makes room.
func TestStreamBeyondAQuotaIsRefused(t *testing.T) {
	h, one, two := twoTenants(t)
	h.server.streams.Configure(quota.Config{
		Tenant: quota.Limits{MaxStreams: 1}, Principal: quota.Limits{CommandsPerMinute: 2},
	})
	entered, release := make(chan struct{}, 2), make(chan struct{})
	h.provider.script.execute = func(_ *scriptedAgent, _ *sandboxv1.ExecuteRequest, out emitter) error {
		entered <- struct{}{}
		<-release
		return errors.Join(out.started(0), out.exited(0, 0))
	}
	for _, ctx := range []context.Context{one, two} {
		if _, err := h.client.CreateSandbox(ctx, &sandboxv1.CreateSandboxRequest{SandboxId: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	run := func(ctx context.Context) error {
		stream, err := h.client.Execute(ctx, &sandboxv1.ExecuteRequest{SandboxId: "a", Command: &sandboxv1.ExecuteRequest_Shell{Shell: "true"}})
		if err == nil {
			_, err = collect(t, stream)
		}
		return err
	}
	var work sync.WaitGroup
	for _, ctx := range []context.Context{one, two} {
		work.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
		<-entered
	}
	err := run(one)
	wantReason(t, err, "QUOTA_EXCEEDED")
	if m := metadataOf(t, err); m["quota"] != "max_streams" || m["scope"] != "tenant" || m["limit"] != "1" || m["used"] != "1" {
		t.Errorf("metadata %v", m)
	}
	close(release)
	work.Wait()
	h.until("the stream is counted no more", func() bool { return run(one) == nil })
	err = run(one)
	wantReason(t, err, "QUOTA_EXCEEDED")
	if m := metadataOf(t, err); m["quota"] != "commands_per_minute" || m["scope"] != "principal" {
		t.Errorf("metadata %v", m)
	}
	if d := retryDelay(t, err); d < time.Second || d > 30*time.Second {
		t.Errorf("RetryInfo %v", d)
	}
}

func retryDelay(t *testing.T, err error) time.Duration {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		if r, ok := d.(*errdetails.RetryInfo); ok {
			return r.GetRetryDelay().AsDuration()
		}
	}
	t.Fatalf("no RetryInfo in %v", err)
	return 0
}
