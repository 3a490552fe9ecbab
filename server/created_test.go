package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	sandboxv1 "github.com/sandgate/sandgate/gen/sandbox/v1"
	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/server/call"
	"github.com/sandgate/sandgate/server/names"
)

// elsewhere removes a sandbox as another replica does: this server keeps its
// connection.
func (h *harness) elsewhere(id string) *scriptedSandbox {
	h.t.Helper()
	p := h.sandbox(id)
	h.provider.mu.Lock()
	defer h.provider.mu.Unlock()
	delete(h.provider.sandboxes, p.info.Name)
	h.t.Cleanup(p.server.Stop)
	return p
}

// A creation uses no connection to a former sandbox of that name, and does not
// delete the new sandbox because of one.
func TestCreateAfterADeletionElsewhere(t *testing.T) {
	h := newHarness(t, nil)
	h.create("x")
	old := h.elsewhere("x")
	sb := h.create("x")
	if sb.GetIncarnation() == old.info.Incarnation {
		t.Fatal("it is the old one")
	}
	if err := h.stat("x"); err != nil {
		t.Error(err)
	}
	if n := h.sandbox("x").dials.Load(); n != 1 {
		t.Errorf("the new agent was dialled %d times", n)
	}
}

// A call that states the incarnation of a sandbox made elsewhere is not sent to,
// nor refused because of, the one before.
func TestCallToAnIncarnationMadeElsewhere(t *testing.T) {
	h := newHarness(t, nil)
	h.create("x")
	old := h.elsewhere("x")
	made := h.provider.make(old.info.Name, old.info.Spec)
	_, err := h.client.StatFile(t.Context(), &sandboxv1.StatFileRequest{SandboxId: "x", Path: "/x", ExpectedIncarnation: made.Incarnation})
	if err != nil {
		t.Error(err)
	}
	_, err = h.client.StatFile(t.Context(), &sandboxv1.StatFileRequest{SandboxId: "x", Path: "/x", ExpectedIncarnation: old.info.Incarnation})
	wantReason(t, err, "SANDBOX_REPLACED")
}

// resumer gives a sandbox another incarnation when it is resumed.
type resumer struct{ *scriptedProvider }

func (r resumer) Suspend(ctx context.Context, name string) (providers.Info, error) {
	return r.Get(ctx, name)
}

func (r resumer) Resume(ctx context.Context, name string) (providers.Info, net.Conn, error) {
	r.mu.Lock()
	old := r.sandboxes[name]
	r.mu.Unlock()
	// The old agent's connection stays, as one to a pod that is gone does.
	r.t.Cleanup(old.server.Stop)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	p := &scriptedSandbox{info: old.info}
	p.info.Incarnation = "resumed"
	p.start(r.script, r.sockets)
	r.sandboxes[name] = p
	conn, err := p.connect(ctx)
	return p.info, conn, err
}

func TestResumeAfterASuspensionElsewhere(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.Provider = resumer{c.Provider.(*scriptedProvider)} })
	h.create("x")
	resp, err := h.client.ResumeSandbox(t.Context(), &sandboxv1.ResumeSandboxRequest{SandboxId: "x"})
	if err != nil || resp.GetSandbox().GetIncarnation() != "resumed" {
		t.Fatalf("%v, %v", resp, err)
	}
	if err := h.stat("x"); err != nil {
		t.Error(err)
	}
}

// A creation that finds an attempt to reach the sandbox before does not fail
// with it.
func TestCreateDuringAnAttemptToReachTheOldOne(t *testing.T) {
	g := newGate()
	var old atomic.Bool
	h := newHarness(t, func(c *Config) {
		c.Provider.(*scriptedProvider).before = func(ctx context.Context, method, name string) error {
			if method != "dial" || !old.CompareAndSwap(true, false) {
				return nil
			}
			return errors.Join(g.pass(ctx, name), errors.New("the old pod is gone"))
		}
	})
	h.create("x")
	h.sandbox("x").cut()
	h.until("the connection is gone", func() bool { return h.server.agents.Peek(names.Substrate(call.DefaultTenant, "x")) == nil })
	old.Store(true)
	var work sync.WaitGroup
	work.Go(func() {
		if err := h.stat("x"); err == nil {
			t.Error("the old one was reached")
		}
	})
	<-g.arrived
	h.elsewhere("x")
	made := make(chan struct{})
	work.Go(func() { defer close(made); h.create("x") })
	h.until("it waits for the attempt", func() bool {
		h.provider.mu.Lock()
		defer h.provider.mu.Unlock()
		return h.provider.sandboxes[names.Substrate(call.DefaultTenant, "x")] != nil
	})
	close(g.open)
	<-made
	work.Wait()
	if err := h.stat("x"); err != nil {
		t.Error(err)
	}
}

// A caller that gives up undoes its creation, unless another caller has been
// given the sandbox, whichever comes first.
func TestUndoSparesWhatAnotherWasGiven(t *testing.T) {
	for name, c := range map[string]struct {
		others bool
		// deleteFirst: the deletion goes through before the other is answered.
		deleteFirst bool
	}{
		"nobody else":                       {},
		"given while the deletion waits":    {others: true},
		"deleted before the other is given": {others: true, deleteFirst: true},
	} {
		t.Run(name, func(t *testing.T) {
			hellos, deletes, updates := newGate(), newGate(), newGate()
			if !c.deleteFirst {
				close(updates.open)
			}
			h := newHarness(t, func(cfg *Config) {
				cfg.Provider.(*scriptedProvider).before = func(ctx context.Context, method, name string) error {
					switch method {
					case "delete":
						return deletes.pass(ctx, name)
					case "update":
						return updates.pass(ctx, name)
					}
					return nil
				}
			})
			h.provider.script.hello = func(ctx context.Context) error { return hellos.pass(ctx, "x") }
			maker, giveUp := context.WithCancel(t.Context())
			defer giveUp()
			var first, second error
			var made, joined sync.WaitGroup
			made.Go(func() {
				_, first = h.server.CreateSandbox(maker, &sandboxv1.CreateSandboxRequest{SandboxId: "x"})
			})
			<-hellos.arrived
			if c.others {
				joined.Go(func() {
					_, second = h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: "x"})
				})
				h.until("the other has joined", func() bool { return h.provider.creates.Load() == 2 })
			}
			giveUp()
			<-deletes.arrived
			if c.deleteFirst {
				close(hellos.open)
				<-updates.arrived
				close(deletes.open)
				made.Wait()
				close(updates.open)
				joined.Wait()
			} else {
				close(hellos.open)
				joined.Wait()
				close(deletes.open)
				made.Wait()
			}
			if !errors.Is(first, context.Canceled) {
				t.Errorf("the first got %v", first)
			}
			if second != nil {
				t.Errorf("the other got %v", second)
			}
			if h.gone("x") == c.others {
				t.Errorf("it is gone: %t", !c.others)
			}
			if c.others {
				if err := h.stat("x"); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A call that waits for a sandbox to answer ends when the sandbox is deleted,
// and so does the server's shutdown.
func TestDeletionEndsTheWaitForAnAgent(t *testing.T) {
	g := newGate()
	var hang atomic.Bool
	h := newHarness(t, func(c *Config) {
		c.Provider.(*scriptedProvider).before = func(ctx context.Context, method, name string) error {
			if method != "dial" || !hang.Load() {
				return nil
			}
			return g.pass(ctx, name)
		}
	})
	for _, id := range []string{"x", "y"} {
		h.create(id)
		h.sandbox(id).cut()
		h.until("the connection is gone", func() bool { return h.server.agents.Peek(names.Substrate(call.DefaultTenant, id)) == nil })
	}
	hang.Store(true)
	waits := make(chan error, 2)
	go func() { waits <- h.stat("x") }()
	<-g.arrived
	if _, err := h.client.DeleteSandbox(t.Context(), &sandboxv1.DeleteSandboxRequest{SandboxId: "x"}); err != nil {
		t.Fatal(err)
	}
	wantReason(t, <-waits, "SANDBOX_NOT_FOUND")
	go func() { waits <- h.stat("y") }()
	<-g.arrived
	if err := h.server.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantReason(t, <-waits, "SERVER_SHUTTING_DOWN")
}

// An error of a failed creation names the sandbox, also if the server chose its id.
func TestFailedCreationsNameTheSandbox(t *testing.T) {
	for _, sentinel := range []error{providers.ErrStartFailed, providers.ErrStartTimeout, providers.ErrAgentCannotStart} {
		h := newHarness(t, nil)
		failed := fmt.Errorf("the image is broken: %w", sentinel)
		h.provider.failCreate.Store(&failed)
		for _, id := range []string{"", "a"} {
			_, err := h.client.CreateSandbox(t.Context(), &sandboxv1.CreateSandboxRequest{SandboxId: id})
			if got := metadataOf(t, err)["sandbox_id"]; got == "" || (id != "" && got != id) {
				t.Errorf("%v names sandbox %q, want %q", err, got, id)
			}
		}
	}
}
