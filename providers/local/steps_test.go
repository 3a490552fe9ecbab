//go:build linux

package local_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandgate/sandgate/providers"
	"github.com/sandgate/sandgate/providers/local"
	"github.com/sandgate/sandgate/providers/providertest"
)

// The steps of a sandbox's life, in order.
var (
	createSteps = []string{
		"make its directory", "write its record", "plan it", "write its bundle", "make its disk", "mount its disk",
		"start its container", "find its first process", "wait for its agent", "record that it is ready",
	}
	claimSteps  = []string{"record the claim", "move the claim"}
	removeSteps = []string{
		"find its runtime", "end its processes", "delete its container", "remove its cgroups", "detach its disk", "delete its files", "release its user id", "delete its record",
	}
)

func allSteps() []string {
	return append(append(append([]string{}, createSteps...), claimSteps...), removeSteps...)
}

func stepPool() []providers.Pool {
	return []providers.Pool{{Template: "storm", Target: 1, Spec: stormSpec()}}
}

// TestStepThatFailsOrHangsAffectsNoOther lets each step of creations, claims and removals fail once and
// hang once. The neighbour must not notice; the caller gets an error in time;
// afterwards the name can be used and deleted, and nothing is left.
func TestStepThatFailsOrHangsAffectsNoOther(t *testing.T) {
	config := testConfig(t)
	var current atomic.Pointer[fault]
	p := open(t, local.WithFault(config, func(_ context.Context, at string) error {
		if f := current.Load(); f != nil && f.step == at && current.CompareAndSwap(f, nil) {
			return f.strike()
		}
		return nil
	}))
	defer closeProvider(t, p)
	spec := stormSpec()
	spec.Hash = "h"
	if _, err := providertest.Create(t.Context(), p, "neighbour", spec); err != nil {
		t.Fatal(err)
	}
	for _, step := range allSteps() {
		for _, hang := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/hangs %v", step, hang), func(t *testing.T) {
				if slices.Contains(claimSteps, step) {
					fillPool(t, p)
					defer func() {
						if err := p.KeepPools(t.Context(), nil); err != nil {
							t.Error(err)
						}
					}()
				}
				f := &fault{step: step, hang: hang, hit: make(chan struct{}), release: make(chan struct{})}
				current.Store(f)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := make(chan struct{})
				go func() {
					defer close(done)
					// Both may fail: the test checks the state afterwards.
					_, _ = providertest.Create(ctx, p, "victim", spec)
					_ = p.Delete(ctx, "victim", providers.Condition{})
				}()
				select {
				case <-f.hit:
				case <-time.After(time.Minute):
					t.Fatal("the step was never reached")
				}
				if hang {
					cancel()
				}
				if got := providertest.Shell(t, p, "neighbour", "echo alive"); got != "alive\n" {
					t.Errorf("the neighbour prints %q", got)
				}
				if page, err := p.List(t.Context(), providers.Query{Limit: 10}); err != nil || len(page.Sandboxes) == 0 {
					t.Errorf("list: %+v, %v", page, err)
				}
				if hang && slices.Contains(removeSteps, step) {
					select {
					case <-done:
					case <-time.After(time.Minute):
						t.Error("a removal that hangs keeps its caller")
					}
				}
				close(f.release)
				<-done
				reuse(t, p, "victim", spec)
			})
		}
	}
	if err := p.Delete(t.Context(), "neighbour", providers.Condition{}); err != nil {
		t.Error(err)
	}
}

// fault strikes once.
type fault struct {
	step         string
	hang         bool
	hit, release chan struct{}
}

var errFault = errors.New("fault")

func (f *fault) strike() error {
	close(f.hit)
	if !f.hang {
		return errFault
	}
	// What hangs in the kernel heeds no context.
	<-f.release
	return nil
}

// reuse makes and deletes a sandbox of this name, whatever there is of it.
func reuse(t *testing.T, p *local.Provider, name string, spec providers.Spec) {
	t.Helper()
	if err := p.Delete(t.Context(), name, providers.Condition{}); err != nil && !errors.Is(err, providers.ErrNotFound) {
		t.Errorf("delete what is left: %v", err)
	}
	if _, err := providertest.Create(t.Context(), p, name, spec); err != nil {
		t.Errorf("create anew: %v", err)
	}
	if got := providertest.Shell(t, p, name, "echo alive"); got != "alive\n" {
		t.Errorf("it prints %q", got)
	}
	if err := p.Delete(t.Context(), name, providers.Condition{}); err != nil {
		t.Errorf("delete it: %v", err)
	}
}

func fillPool(t *testing.T, p *local.Provider) {
	t.Helper()
	if err := p.KeepPools(t.Context(), stepPool()); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		s, err := p.PoolStatus(t.Context(), "storm")
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("the pool is not filled: %+v, %v", s, err)
		}
		if s.Available == 1 {
			return
		}
	}
}

// TestServerKilledBeforeAnyStepIsRecoveredFrom kills a server right before each step of a creation, a
// claim, a removal, and of the recovery of a removal. The next one must find the
// neighbour whole and the victim whole or not at all.
func TestServerKilledBeforeAnyStepIsRecoveredFrom(t *testing.T) {
	config := testConfig(t)
	spec := stormSpec()
	spec.Hash = "h"
	for _, step := range allSteps() {
		t.Run(step, func(t *testing.T) {
			v := victim{StateDir: config.StateDir, AgentPath: agentFile(t), CgroupParent: config.CgroupParent, Runtime: "runc", DieAt: step}
			if slices.Contains(claimSteps, step) {
				v.Pools = stepPool()
			}
			dieAt(t, v)
			if slices.Contains(removeSteps, step) {
				// The server that is to finish the removal dies there, too.
				v.Recover = true
				dieAt(t, v)
			}
			p := open(t, config)
			defer closeProvider(t, p)
			page := settledList(t, p)
			for _, info := range page.Sandboxes {
				if info.State != providers.StateActive {
					t.Errorf("%s is %v: %s", info.Name, info.State, info.Message)
				}
			}
			if got := providertest.Shell(t, p, "neighbour", "echo alive"); got != "alive\n" {
				t.Errorf("the neighbour prints %q", got)
			}
			reuse(t, p, "victim", spec)
			if err := p.KeepPools(t.Context(), nil); err != nil {
				t.Error(err)
			}
		})
	}
	p := open(t, config)
	defer closeProvider(t, p)
	if err := p.Delete(t.Context(), "neighbour", providers.Condition{}); err != nil {
		t.Error(err)
	}
}

// dieAt runs a server that kills itself at a step, and wants it to have got there.
func dieAt(t *testing.T, v victim) {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), victimConfig+"="+string(raw))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the server did not kill itself: %v: %s", err, out)
	}
}

// beDoomed makes and deletes sandboxes until it comes to the step at which it
// kills itself.
func beDoomed(v victim) error {
	ctx := context.Background()
	var armed atomic.Bool
	armed.Store(v.Recover)
	config := local.Config{StateDir: v.StateDir, Agent: agentAt(v.AgentPath), CgroupParent: v.CgroupParent, Runtime: v.Runtime}
	p, err := local.New(ctx, local.WithFault(config, func(_ context.Context, at string) error {
		if at == v.DieAt && armed.Load() {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
		return nil
	}))
	if err != nil {
		return err
	}
	spec := stormSpec()
	spec.Hash = "h"
	if _, err := providertest.Create(ctx, p, "neighbour", spec); err != nil {
		return err
	}
	if err := p.KeepPools(ctx, v.Pools); err != nil {
		return err
	}
	for _, pool := range v.Pools {
		for s := (providers.PoolStatus{}); s.Available < pool.Target; time.Sleep(5 * time.Millisecond) {
			if s, err = p.PoolStatus(ctx, pool.Template); err != nil {
				return err
			}
		}
	}
	armed.Store(true)
	if _, err := providertest.Create(ctx, p, "victim", spec); err != nil {
		return err
	}
	if err := p.Delete(ctx, "victim", providers.Condition{}); err != nil {
		return err
	}
	return errors.New("it came to the end")
}
