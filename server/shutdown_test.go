package server

import (
	"context"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
)

// Long streams end with a clear status in bounded time, and the agents see a
// broken pipe, not cancelled calls: the commands run on.
func TestShutdownEndsStreams(t *testing.T) {
	w := newWorld(t, nil)
	w.provider.script.execute = hang
	w.create("a")
	p := w.place("a")
	var started, ended sync.WaitGroup
	errs := make(chan error, 20)
	for range cap(errs) {
		started.Add(1)
		ended.Go(func() {
			stream, err := w.client.Execute(t.Context(), &sandboxv1.ExecuteRequest{SandboxId: "a",
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
	if err := w.server.Shutdown(ctx); err != nil {
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
	w := newWorld(t, nil)
	w.create("a")
	w.server.stopping.Store(true)
	defer w.server.stopping.Store(false)
	_, err := w.client.GetSandbox(t.Context(), &sandboxv1.GetSandboxRequest{SandboxId: "a"})
	wantReason(t, err, "SERVER_SHUTTING_DOWN")
}

func TestHealth(t *testing.T) {
	w := newWorld(t, nil)
	resp, err := healthv1.NewHealthClient(w.conn).Check(t.Context(), &healthv1.HealthCheckRequest{Service: "sandbox.v1.SandboxService"})
	if err != nil || resp.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Fatalf("%v %v", resp, err)
	}
}
