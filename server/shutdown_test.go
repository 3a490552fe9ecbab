package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/agentconn"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/names"
)

// Long streams end with a clear status in bounded time, and the agents see a
// broken pipe, not cancelled calls: the commands run on.
func TestShutdownEndsStreams(t *testing.T) {
	h := newHarness(t, nil)
	h.provider.script.execute = hang
	h.create("a")
	p := h.sandbox("a")
	var started, ended sync.WaitGroup
	errs := make(chan error, 20)
	for range cap(errs) {
		started.Add(1)
		ended.Go(func() {
			stream, err := h.client.Execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a",
				Command: &sandboxv1.ExecuteRequest_Shell{Shell: "x"}})
			if err == nil {
				_, err = stream.Recv()
			}
			started.Done()
			for err == nil {
				_, err = stream.Recv()
			}
			errs <- err
		})
	}
	started.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := h.server.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	ended.Wait()
	for range cap(errs) {
		err := <-errs
		wantReason(t, err, "SERVER_SHUTTING_DOWN")
		if status.Code(err) != codes.Unavailable {
			t.Errorf("code %s", status.Code(err))
		}
	}
	// The agent's own view of every stream: the transport went away. Its
	// context ends either way; what it must not get is a reset of each stream,
	// which the closed byte stream makes impossible.
	for range cap(errs) {
		<-p.agent.cancelled
	}
}

func TestShutdownRefusesNewCalls(t *testing.T) {
	h := newHarness(t, nil)
	h.create("a")
	h.server.stopping.Store(true)
	defer h.server.stopping.Store(false)
	_, err := h.client.GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: "a"})
	wantReason(t, err, "SERVER_SHUTTING_DOWN")
}

func TestHealth(t *testing.T) {
	h := newHarness(t, nil)
	resp, err := healthv1.NewHealthClient(h.conn).Check(t.Context(), &healthv1.HealthCheckRequest{Service: "sandbox.v1.SandboxService"})
	if err != nil || resp.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Fatalf("%v %v", resp, err)
	}
}

// A lame duck serves as before, and health checks fail meanwhile.
func TestShutdownIsAnnouncedFirst(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Timing.LameDuck = time.Hour })
	h.create("a")
	ctx, cut := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.server.Shutdown(ctx) }()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if code, _ := h.admin("/readyz"); code == http.StatusServiceUnavailable {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("still ready")
		}
	}
	resp, err := healthv1.NewHealthClient(h.conn).Check(t.Context(), &healthv1.HealthCheckRequest{Service: "sandbox.v1.SandboxService"})
	for err == nil && resp.GetStatus() != healthv1.HealthCheckResponse_NOT_SERVING {
		resp, err = healthv1.NewHealthClient(h.conn).Check(t.Context(), &healthv1.HealthCheckRequest{Service: "sandbox.v1.SandboxService"})
	}
	if err != nil {
		t.Fatal(err)
	}
	if code, _ := h.admin("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz %d", code)
	}
	h.create("b")
	cut()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// At its age a connection takes no new calls; what runs on it goes on.
func TestAgedConnectionTakesNoNewCalls(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Timing.ConnectionAge = 100 * time.Millisecond })
	release := make(chan struct{})
	h.provider.script.execute = func(_ *scriptedAgent, _ *sandboxv1.ExecuteRequest, out emitter) error {
		if err := out.started(0); err != nil {
			return err
		}
		<-release
		return out.exited(0, 0)
	}
	h.create("a")
	stream, err := h.client.Execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a",
		Command: &sandboxv1.ExecuteRequest_Shell{Shell: "x"}})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for state := h.conn.GetState(); state == connectivity.Ready; state = h.conn.GetState() {
		if !h.conn.WaitForStateChange(ctx, state) {
			t.Fatal("the client was not told to reconnect")
		}
	}
	close(release)
	for err == nil {
		_, err = stream.Recv()
	}
	if !errors.Is(err, io.EOF) {
		t.Errorf("the running call ended with %v", err)
	}
}

// What a call that ran until the end noted is written before the server is gone.
func TestShutdownWaitsForActivity(t *testing.T) {
	var written atomic.Bool
	h := newHarness(t, func(c *Config) {
		c.Provider.(*scriptedProvider).before = func(_ context.Context, method, _ string) error {
			if method == "update" {
				time.Sleep(200 * time.Millisecond)
				written.Store(true)
			}
			return nil
		}
	})
	h.create("a")
	conn := h.server.agents.Peek(names.Substrate(call.DefaultTenant, "a"))
	h.server.haltOnce.Do(func() { close(h.server.halt) })
	h.server.work.Wait()
	h.server.activity.Note(t.Context(), conn, time.Now().Add(time.Hour))
	if err := h.server.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !written.Load() {
		t.Error("the write outlives the server")
	}
}

// A provider whose Dial does not return holds a shutdown up no longer than its
// caller wants.
func TestShutdownEndsWithItsContext(t *testing.T) {
	hang, hanging := make(chan struct{}), make(chan struct{}, 1)
	h := newHarness(t, func(c *Config) {
		c.Provider.(*scriptedProvider).before = func(_ context.Context, method, _ string) error {
			if method != "dial" {
				return nil
			}
			hanging <- struct{}{}
			<-hang
			return providers.ErrUnavailable
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = h.server.agents.Inspect(ctx, agentconn.Key{Tenant: call.DefaultTenant, ID: "a", Name: h.bare("a")}, nil)
	}()
	<-hanging
	cancel()
	done := make(chan error, 1)
	go func() { done <- h.server.Shutdown(ctx) }()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("it waits for the provider")
	}
	close(hang)
}

// bare makes a sandbox that the server has no connection to, and returns its name.
func (h *harness) bare(id string) string {
	h.t.Helper()
	name := names.Substrate(call.DefaultTenant, id)
	h.provider.make(name, providers.Spec{Tenant: call.DefaultTenant, ID: id})
	return name
}

// A caller that receives nothing does not hold a shutdown up.
func TestShutdownCutsUnreadStreams(t *testing.T) {
	h := newHarness(t, nil)
	full := make(chan struct{})
	h.provider.script.execute = func(_ *scriptedAgent, _ *sandboxv1.ExecuteRequest, out emitter) error {
		err := out.started(0)
		block := strings.Repeat("x", 32_000)
		for position := int64(0); err == nil; position += int64(len(block)) {
			// More than the 64 KiB that are sent ahead to a caller that receives nothing,
			// and less than what the agent and the server hold behind that.
			if position == int64(len(block))*8 {
				close(full)
			}
			err = out.output(position, block)
		}
		return err
	}
	h.create("a")
	stream, err := h.client.Execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a",
		Command: &sandboxv1.ExecuteRequest_Shell{Shell: "x"}})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Fatal(err)
	}
	<-full
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := h.server.Shutdown(ctx); err != nil {
		t.Errorf("the shutdown took until its deadline: %v", err)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ended with %v", err)
	}
}
